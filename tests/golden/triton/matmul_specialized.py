# mugraph matmul float16
# dims m=2048 k=1024 n=2048
# input X f16[m, k]
# input W f16[k, n]
# output Y f16[m, n]
#
# kernel k0 generated m:grid n:grid k:loop  # grid (m, n), for-loop over k
#   X = load X[m, k]                        # imap {x→m, y→φ} fmap {i→k}
#   W = load W[k, n]                        # imap {x→φ, y→n} fmap {i→k}
#   Y[m, n] = dot(X, W; k)                  # loop over k: accumulator
#   store Y[m, n] = Y                       # omap {x→m, y→n}
# schedule
# k0: m=128 n=128 k=64 order=m,k,n warps=4 stages=3 group=8 descriptors specialize


# k0: 256 programs, num_warps=4, num_stages=3, of Y
#   X[m, k] in boxes of (128, 64)
#   W[k, n] in boxes of (64, 128)
@triton.jit
def k0(Y_ptr, X_desc, W_desc):
    SIZE_m: tl.constexpr = 2048
    BLOCK_m: tl.constexpr = 128
    SIZE_n: tl.constexpr = 2048
    BLOCK_n: tl.constexpr = 128
    SIZE_k: tl.constexpr = 1024
    BLOCK_k: tl.constexpr = 64
    pid = tl.program_id(0)
    first_m = pid // 128 * 8  # groups of 8 tiles of m share those of n
    rows_m = min(16 - first_m, 8)
    t_m = first_m + pid % 128 % rows_m
    t_n = pid % 128 // rows_m
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    Y = tl.zeros([BLOCK_m, BLOCK_n], tl.float32)
    for s_k in tl.range(0, SIZE_k, 64, warp_specialize=True):
        i_k = s_k + tl.arange(0, BLOCK_k)
        X = X_desc.load([t_m * BLOCK_m, s_k])  # [m, k]
        W = W_desc.load([s_k, t_n * BLOCK_n])  # [k, n]
        Y = tl.dot(X, W, Y)  # [m, n]
    tl.store(Y_ptr + i_m[:, None] * 2048 + i_n[None, :], Y.to(tl.float16))
