# mugraph gated_mlp float16
# dims m=1024 k=4096 n=4096
# dynamic m=1..4096
# input X f16[m, k]
# input W1 f16[k, n]
# input W2 f16[k, n]
# output O f16[m, n]
#
# kernel k0 generated m:grid k:loop n:grid  # grid (m, n), for-loop over k
#   W1 = load W1[k, n]                      # imap {x→φ, y→n} fmap {i→k}
#   W2 = load W2[k, n]                      # imap {x→φ, y→n} fmap {i→k}
#   X = load X[m, k]                        # imap {x→m, y→φ} fmap {i→k}
#   U[m, n] = dot(X, W1; k)                 # loop over k: accumulator
#   t2[m, n] = silu(U)                      # epilogue
#   V[m, n] = dot(X, W2; k)                 # loop over k: accumulator
#   O[m, n] = mul(t2, V)                    # epilogue
#   store O[m, n] = O                       # omap {x→m, y→n}
# schedule
# k0: m=128 k=64 n=64 order=m,k,n warps=8 stages=4 group=8 overlap descriptors


# k0: -(-SIZE_m // 128) * 64 programs, num_warps=8, num_stages=4, launch_pdl=can_overlap(), of O
#   W1[k, n] in boxes of (64, 64)
#   W2[k, n] in boxes of (64, 64)
#   X[m, k] in boxes of (128, 64)
@triton.jit(do_not_specialize=["SIZE_m"])
def k0(O_ptr, W1_desc, W2_desc, X_desc, SIZE_m):
    BLOCK_m: tl.constexpr = 128
    SIZE_k: tl.constexpr = 4096
    BLOCK_k: tl.constexpr = 64
    SIZE_n: tl.constexpr = 4096
    BLOCK_n: tl.constexpr = 64
    pid = tl.program_id(0)
    tiles_m = (SIZE_m + 127) // 128
    first_m = pid // 512 * 8  # groups of 8 tiles of m share those of n
    rows_m = min(tiles_m - first_m, 8)
    t_m = first_m + pid % 512 % rows_m
    t_n = pid % 512 // rows_m
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    in_m = i_m < SIZE_m
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    wait_for_data()
    U = tl.zeros([BLOCK_m, BLOCK_n], tl.float32)
    V = tl.zeros([BLOCK_m, BLOCK_n], tl.float32)
    for s_k in range(0, SIZE_k, 64):
        i_k = s_k + tl.arange(0, BLOCK_k)
        W1 = W1_desc.load([s_k, t_n * BLOCK_n])  # [k, n]
        W2 = W2_desc.load([s_k, t_n * BLOCK_n])  # [k, n]
        X = X_desc.load([t_m * BLOCK_m, s_k])  # [m, k]
        U = tl.dot(X, W1, U)  # [m, n]
        V = tl.dot(X, W2, V)  # [m, n]
    release_next()
    t2 = (U * tl.sigmoid(U))  # [m, n]
    O = (t2 * V)  # [m, n]
    tl.store(O_ptr + i_m[:, None] * 4096 + i_n[None, :], O.to(tl.float16), mask=in_m[:, None])
