# mugraph two_outputs float16
# dims m=50 k=100 n=96
# input X f16[m, k]
# input W f16[k, n]
# output Y f16[m, n]
# output T f16[m]
#
# kernel k0 generated m:grid k:loop n:tile  # grid (m), for-loop over k
#   X = load X[m, k]                        # imap {x→m} fmap {i→k}
#   W = load W[k, n]                        # imap {x→φ} fmap {i→k}
#   P[m, n] = dot(X, W; k)                  # loop over k: accumulator
#   R[m, n] = maximum(P, 0)                 # epilogue
#   Y[m, n] = minimum(R, 6)                 # epilogue
#   T[m] = max(Y; n)                        # epilogue
#   store Y[m, n] = Y                       # omap {x→m}
#   store T[m] = T                          # omap {x→m}
# schedule
# k0: m=16 k=32 order=m,k,n warps=4 stages=2


# k0: 4 programs, num_warps=4, num_stages=2, of X, W, Y, T
@triton.jit
def k0(X_ptr, W_ptr, Y_ptr, T_ptr):
    SIZE_m: tl.constexpr = 50
    BLOCK_m: tl.constexpr = 16
    SIZE_k: tl.constexpr = 100
    BLOCK_k: tl.constexpr = 32
    SIZE_n: tl.constexpr = 96
    BLOCK_n: tl.constexpr = 128
    pid = tl.program_id(0)
    t_m = pid
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    in_m = i_m < SIZE_m
    i_n = tl.arange(0, BLOCK_n)
    in_n = i_n < SIZE_n
    P = tl.zeros([BLOCK_m, BLOCK_n], tl.float32)
    for s_k in range(0, SIZE_k, 32):
        i_k = s_k + tl.arange(0, BLOCK_k)
        in_k = i_k < SIZE_k
        X = tl.load(X_ptr + i_m[:, None] * 100 + i_k[None, :], mask=(in_m[:, None]) & (in_k[None, :]), other=0)  # [m, k]
        W = tl.load(W_ptr + i_k[:, None] * 96 + i_n[None, :], mask=(in_k[:, None]) & (in_n[None, :]), other=0)  # [k, n]
        P = tl.dot(X, W, P)  # [m, n]
    R = tl.maximum(P, 0.0, propagate_nan=tl.PropagateNan.ALL)  # [m, n]
    Y = tl.minimum(R, 6.0, propagate_nan=tl.PropagateNan.ALL)  # [m, n]
    T = largest(tl.where(in_n[None, :], Y, float("-inf")), 1)  # [m]
    tl.store(Y_ptr + i_m[:, None] * 96 + i_n[None, :], Y.to(tl.float16), mask=(in_m[:, None]) & (in_n[None, :]))
    tl.store(T_ptr + i_m, T.to(tl.float16), mask=in_m)
