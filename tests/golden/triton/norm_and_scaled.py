# mugraph norm_and_scaled bfloat16
# dims m=64 n=50 k=300
# input X bf16[m, k]
# input W bf16[k, n]
# output Y bf16[m, n]
# output S f32[]
# buffer R bf16[m]
#
# kernel k0 generated m:grid k:tile  # grid (m)
#   X = load X[m, k]                 # imap {x→m}
#   Q[m, k] = mul(X, X)
#   A[m] = max(Q; k)
#   R[m] = rsqrt(A)
#   B[m] = mul(R, 2)
#   store R[m] = R                   # omap {x→m}
#
# kernel k1 generated m:loop k:loop n:grid  # grid (n), for-loop over m, k
#   R = load R[m]                           # imap {x→φ} fmap {i→m}
#   X = load X[m, k]                        # imap {x→φ} fmap {i→m, i→k}
#   D[m, k] = mul(X, R)                     # loop over m, k
#   S[] = max(D; m, k)                      # loop over m, k: accumulator
#   store S[] = S                           # omap {}
#
# kernel k2 generated m:grid n:grid k:loop  # grid (m, n), for-loop over k
#   X = load X[m, k]                        # imap {x→m, y→φ} fmap {i→k}
#   W = load W[k, n]                        # imap {x→φ, y→n} fmap {i→k}
#   Y[m, n] = dot(X, W; k)                  # loop over k: accumulator
#   store Y[m, n] = Y                       # omap {x→m, y→n}
# schedule
# k0: m=4 order=m,k warps=4 stages=2
# k1: m=16 k=64 n=16 order=m,k,n warps=4 stages=2
# k2: m=8 n=16 k=64 order=m,k,n warps=4 stages=2


# k0: 16 programs, num_warps=4, num_stages=2, enable_fp_fusion=False, of X, R
@triton.jit
def k0(X_ptr, R_ptr):
    SIZE_m: tl.constexpr = 64
    BLOCK_m: tl.constexpr = 4
    SIZE_k: tl.constexpr = 300
    BLOCK_k: tl.constexpr = 512
    pid = tl.program_id(0)
    t_m = pid
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    i_k = tl.arange(0, BLOCK_k)
    in_k = i_k < SIZE_k
    X = tl.load(X_ptr + i_m[:, None] * 300 + i_k[None, :], mask=in_k[None, :], other=0)  # [m, k]
    Q = (X.to(tl.float32) * X.to(tl.float32))  # [m, k]
    A = largest(tl.where(in_k[None, :], Q, float("-inf")), 1)  # [m]
    R = tl.rsqrt(A)  # [m]
    R = to_bfloat16(R).to(tl.float32)  # as it is stored
    tl.store(R_ptr + i_m, to_bfloat16(R))


# k1: 4 programs, num_warps=4, num_stages=2, enable_fp_fusion=False, of R, X, S
@triton.jit
def k1(R_ptr, X_ptr, S_ptr):
    SIZE_m: tl.constexpr = 64
    BLOCK_m: tl.constexpr = 16
    SIZE_k: tl.constexpr = 300
    BLOCK_k: tl.constexpr = 64
    SIZE_n: tl.constexpr = 50
    BLOCK_n: tl.constexpr = 16
    pid = tl.program_id(0)
    t_n = pid
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    in_n = i_n < SIZE_n
    S = tl.full([BLOCK_m, BLOCK_k], float("-inf"), tl.float32)
    for step in range(0, 20):  # tiles of m, k together
        i_m = (step // 5) * 16 + tl.arange(0, BLOCK_m)
        i_k = (step // 1 % 5) * 64 + tl.arange(0, BLOCK_k)
        in_k = i_k < SIZE_k
        R = tl.load(R_ptr + i_m)  # [m]
        X = tl.load(X_ptr + i_m[:, None] * 300 + i_k[None, :], mask=in_k[None, :], other=0)  # [m, k]
        D = (X.to(tl.float32) * R.to(tl.float32)[:, None])  # [m, k]
        S = tl.maximum(S, tl.where(in_k[None, :], D, float("-inf")), propagate_nan=tl.PropagateNan.ALL)  # [m, k]
    S = largest(largest(S, 1), 0)
    if t_n == 0:  # the same for all of these instances: one of them stores
        tl.store(S_ptr + 0, S.to(tl.float32))


# k2: 32 programs, num_warps=4, num_stages=2, enable_fp_fusion=False, of X, W, Y
@triton.jit
def k2(X_ptr, W_ptr, Y_ptr):
    SIZE_m: tl.constexpr = 64
    BLOCK_m: tl.constexpr = 8
    SIZE_n: tl.constexpr = 50
    BLOCK_n: tl.constexpr = 16
    SIZE_k: tl.constexpr = 300
    BLOCK_k: tl.constexpr = 64
    pid = tl.program_id(0)
    t_n = pid % 4
    pid = pid // 4
    t_m = pid
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    in_n = i_n < SIZE_n
    Y = tl.zeros([BLOCK_n, BLOCK_m], tl.float32)
    for s_k in range(0, SIZE_k, 64):
        i_k = s_k + tl.arange(0, BLOCK_k)
        in_k = i_k < SIZE_k
        X = tl.load(X_ptr + i_m[None, :] * 300 + i_k[:, None], mask=in_k[:, None], other=0)  # [k, m]
        W = tl.load(W_ptr + i_k[None, :] * 50 + i_n[:, None], mask=(in_n[:, None]) & (in_k[None, :]), other=0)  # [n, k]
        Y = tl.dot(W.to(MATRIX_TYPE), X.to(MATRIX_TYPE), Y)  # [n, m]
    tl.store(Y_ptr + i_m[None, :] * 50 + i_n[:, None], to_bfloat16(Y), mask=in_n[:, None])
