# mugraph roots float32
# dims m=32 k=64 n=48
# input X f32[m, k]
# input W f32[k, n]
# output Y f32[]
#
# kernel k0 generated k:loop m:tile n:tile  # grid (), for-loop over k
#   X = load X[m, k]                        # imap {} fmap {i→k}
#   W = load W[k, n]                        # imap {} fmap {i→k}
#   A[k, m] = sqrt(X)                       # loop over k
#   P[m, n] = dot(A, W; k)                  # loop over k: accumulator
#   B[m, n] = sqrt(P)                       # epilogue
#   Y[] = sum(B; m, n)                      # epilogue
#   store Y[] = Y                           # omap {}
# schedule
# k0: k=32 order=k,m,n warps=4 stages=2


# k0: 1 programs, num_warps=4, num_stages=2, enable_fp_fusion=False, of X, W, Y
@triton.jit
def k0(X_ptr, W_ptr, Y_ptr):
    SIZE_k: tl.constexpr = 64
    BLOCK_k: tl.constexpr = 32
    SIZE_m: tl.constexpr = 32
    BLOCK_m: tl.constexpr = 32
    SIZE_n: tl.constexpr = 48
    BLOCK_n: tl.constexpr = 64
    i_m = tl.arange(0, BLOCK_m)
    i_n = tl.arange(0, BLOCK_n)
    in_n = i_n < SIZE_n
    P = tl.zeros([BLOCK_m, BLOCK_n], tl.float32)
    for s_k in range(0, SIZE_k, 32):
        i_k = s_k + tl.arange(0, BLOCK_k)
        X = tl.load(X_ptr + i_m[None, :] * 64 + i_k[:, None])  # [k, m]
        W = tl.load(W_ptr + i_k[:, None] * 48 + i_n[None, :], mask=in_n[None, :], other=0)  # [k, n]
        A = tl.sqrt_rn(X)  # [k, m]
        P = tl.dot(tl.permute(A, (1, 0)), W, P, input_precision="ieee")  # [m, n]
    B = tl.sqrt_rn(P)  # [m, n]
    Y = tl.sum(tl.sum(tl.where(in_n[None, :], B, 0.0), axis=1), axis=0)  # []
    tl.store(Y_ptr + 0, Y.to(tl.float32))
