# mugraph layer_norm float16
# dims m=20 k=1000
# input X f16[m, k]
# output Y f16[m, k]
#
# kernel k0 generated m:grid k:loop  # grid (m), for-loop over k, for-loop over k, for-loop over k
#   X = load X[m, k]                 # imap {x→m} fmap {i→k}
#   S[m] = sum(X; k)                 # loop over k (1): accumulator
#   C[] = size(k)                    # between loops
#   A[m] = div(S, C)                 # between loops
#   D[m, k] = sub(X, A)              # loop over k (2)
#   D2[m, k] = square(D)             # loop over k (2)
#   V[m] = sum(D2; k)                # loop over k (2): accumulator
#   W[m] = div(V, C)                 # between loops
#   Z[m] = add(W, 1/100000)          # between loops
#   R[m] = rsqrt(Z)                  # between loops
#   Y[m, k] = mul(D, R)              # loop over k (3)
#   store Y[m, k] = Y                # omap {x→m}
# schedule
# k0: m=1 k=256 order=m,k warps=4 stages=2


# k0: 20 programs, num_warps=4, num_stages=2, of X, Y
@triton.jit
def k0(X_ptr, Y_ptr):
    SIZE_m: tl.constexpr = 20
    SIZE_k: tl.constexpr = 1000
    BLOCK_k: tl.constexpr = 256
    pid = tl.program_id(0)
    t_m = pid
    i_m = t_m
    S = tl.zeros([BLOCK_k], tl.float32)
    for s_k in range(0, SIZE_k, 256):
        i_k = s_k + tl.arange(0, BLOCK_k)
        in_k = i_k < SIZE_k
        X = tl.load(X_ptr + i_m * 1000 + i_k, mask=in_k, other=0)  # [k]
        S += X.to(tl.float32)  # [k]
    S = tl.sum(S, axis=0)
    C = tl.full((), 1000.0, tl.float32)  # []
    A = tl.div_rn(S, C)  # []
    V = tl.zeros([BLOCK_k], tl.float32)
    for s_k in range(0, SIZE_k, 256):
        i_k = s_k + tl.arange(0, BLOCK_k)
        in_k = i_k < SIZE_k
        X = tl.load(X_ptr + i_m * 1000 + i_k, mask=in_k, other=0)  # [k]
        D = (X.to(tl.float32) - A)  # [k]
        D2 = (D * D)  # [k]
        V += tl.where(in_k, D2, 0.0)  # [k]
    V = tl.sum(V, axis=0)
    W = tl.div_rn(V, C)  # []
    Z = (W + 1e-05)  # []
    R = tl.rsqrt(Z)  # []
    for s_k in range(0, SIZE_k, 256):
        i_k = s_k + tl.arange(0, BLOCK_k)
        in_k = i_k < SIZE_k
        X = tl.load(X_ptr + i_m * 1000 + i_k, mask=in_k, other=0)  # [k]
        D = (X.to(tl.float32) - A)  # [k]
        Y = (D * R)  # [k]
        tl.store(Y_ptr + i_m * 1000 + i_k, Y.to(tl.float16), mask=in_k)
