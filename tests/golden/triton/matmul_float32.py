# mugraph matmul_add float32
# dims m=100 k=256 n=512
# input X f32[m, k]
# input W f32[k, n]
# input B f32[n]
# output Y f32[m, n]
#
# kernel k0 generated m:grid n:grid k:loop  # grid (m, n), for-loop over k
#   X = load X[m, k]                        # imap {x→m, y→φ} fmap {i→k}
#   W = load W[k, n]                        # imap {x→φ, y→n} fmap {i→k}
#   B = load B[n]                           # imap {x→φ, y→n}
#   P[m, n] = dot(X, W; k)                  # loop over k: accumulator
#   Y[m, n] = add(P, B)                     # epilogue
#   store Y[m, n] = Y                       # omap {x→m, y→n}
# schedule
# k0: m=32 n=64 k=32 order=m,k,n warps=4 stages=3 tf32x3


# k0: 32 programs, num_warps=4, num_stages=3, enable_fp_fusion=False, of X, W, B, Y
@triton.jit
def k0(X_ptr, W_ptr, B_ptr, Y_ptr):
    SIZE_m: tl.constexpr = 100
    BLOCK_m: tl.constexpr = 32
    SIZE_n: tl.constexpr = 512
    BLOCK_n: tl.constexpr = 64
    SIZE_k: tl.constexpr = 256
    BLOCK_k: tl.constexpr = 32
    pid = tl.program_id(0)
    t_n = pid % 8
    pid = pid // 8
    t_m = pid
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    in_m = i_m < SIZE_m
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    B = tl.load(B_ptr + i_n)  # [n]
    P = tl.zeros([BLOCK_m, BLOCK_n], tl.float32)
    for s_k in range(0, SIZE_k, 32):
        i_k = s_k + tl.arange(0, BLOCK_k)
        X = tl.load(X_ptr + i_m[:, None] * 256 + i_k[None, :], mask=in_m[:, None], other=0)  # [m, k]
        W = tl.load(W_ptr + i_k[:, None] * 512 + i_n[None, :])  # [k, n]
        P = tl.dot(X, W, P, input_precision="tf32x3")  # [m, n]
    Y = (P + B[None, :])  # [m, n]
    tl.store(Y_ptr + i_m[:, None] * 512 + i_n[None, :], Y.to(tl.float32), mask=in_m[:, None])
