# mugraph nested float32
# dims m=64 k=256 n=128
# input X f32[m, k]
# input W f32[k, n]
# output Y f32[m, n]
# buffer H f32[m, n]
#
# kernel k0 generated m:grid n:grid k:loop  # grid (m, n), for-loop over k
#   X = load X[m, k]                        # imap {x→m, y→φ} fmap {i→k}
#   W = load W[k, n]                        # imap {x→φ, y→n} fmap {i→k}
#   M[m] = max(X; k)                        # loop over k: running maximum
#   E[m, k] = exp_sub(X, M)                 # loop over k
#   L[m] = sum(E; k)                        # loop over k: accumulator, rescaled by exp(ΔM)^1
#   U[m, n] = dot(E, W; k)                  # loop over k: accumulator, rescaled by exp(ΔM)^1
#   H[m, n] = div(U, L)                     # epilogue
#   store H[m, n] = H                       # omap {x→m, y→n}
#
# kernel k1 generated m:grid n:loop  # grid (m), for-loop over n, for-loop over n
#   H = load H[m, n]                 # imap {x→m} fmap {i→n}
#   M[m] = max(H; n)                 # loop over n (1): running maximum
#   E[m, n] = exp_sub(H, M)          # loop over n (1)
#   L[m] = sum(E; n)                 # loop over n (1): accumulator, rescaled by exp(ΔM)^1
#   Y[m, n] = div(E, L)              # loop over n (2)
#   store Y[m, n] = Y                # omap {x→m}
# schedule
# k0: m=16 n=32 k=64 order=m,k,n warps=4 stages=2 overlap
# k1: m=4 n=64 order=m,n warps=4 stages=2 overlap relay


# k0: 16 programs, num_warps=4, num_stages=2, launch_pdl=can_overlap(), enable_fp_fusion=False, of X, W, H
@triton.jit
def k0(X_ptr, W_ptr, H_ptr):
    SIZE_m: tl.constexpr = 64
    BLOCK_m: tl.constexpr = 16
    SIZE_n: tl.constexpr = 128
    BLOCK_n: tl.constexpr = 32
    SIZE_k: tl.constexpr = 256
    BLOCK_k: tl.constexpr = 64
    pid = tl.program_id(0)
    t_n = pid % 4
    pid = pid // 4
    t_m = pid
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    wait_for_data()
    M = tl.full([BLOCK_m], float("-inf"), tl.float32)
    L = tl.zeros([BLOCK_m], tl.float32)
    U = tl.zeros([BLOCK_m, BLOCK_n], tl.float32)
    for s_k in range(0, SIZE_k, 64):
        i_k = s_k + tl.arange(0, BLOCK_k)
        X = tl.load(X_ptr + i_m[:, None] * 256 + i_k[None, :])  # [m, k]
        W = tl.load(W_ptr + i_k[:, None] * 128 + i_n[None, :])  # [k, n]
        M_next = tl.maximum(M, tl.max(X, axis=1))  # running maximum
        M_shift = tl.where(tl.abs(M_next) == float("inf"), 0.0, M_next)
        M_scale = tl.exp2((M - M_shift) * 1.4426950408889634)
        M = M_next
        E = tl.exp2((X - M_shift[:, None]) * 1.4426950408889634)  # [m, k]
        L = L * M_scale
        L += tl.sum(E, axis=1)  # [m]
        U = U * M_scale[:, None]
        U = tl.dot(E, W, U, input_precision="ieee")  # [m, n]
    release_next()
    H = quotient(U, L[:, None])  # [m, n]
    tl.store(H_ptr + i_m[:, None] * 128 + i_n[None, :], H.to(tl.float32))


# k1: 16 programs, num_warps=4, num_stages=2, launch_pdl=can_overlap(), enable_fp_fusion=False, of H, Y
@triton.jit
def k1(H_ptr, Y_ptr):
    SIZE_m: tl.constexpr = 64
    BLOCK_m: tl.constexpr = 4
    SIZE_n: tl.constexpr = 128
    BLOCK_n: tl.constexpr = 64
    pid = tl.program_id(0)
    t_m = pid
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    release_next()
    wait_for_data()
    M = tl.full([BLOCK_m], float("-inf"), tl.float32)
    L = tl.zeros([BLOCK_m], tl.float32)
    for s_n in range(0, SIZE_n, 64):
        i_n = s_n + tl.arange(0, BLOCK_n)
        H = tl.load(H_ptr + i_m[:, None] * 128 + i_n[None, :])  # [m, n]
        M_next = tl.maximum(M, tl.max(H, axis=1))  # running maximum
        M_shift = tl.where(tl.abs(M_next) == float("inf"), 0.0, M_next)
        M_scale = tl.exp2((M - M_shift) * 1.4426950408889634)
        M = M_next
        E = tl.exp2((H - M_shift[:, None]) * 1.4426950408889634)  # [m, n]
        L = L * M_scale
        L += tl.sum(E, axis=1)  # [m]
    for s_n in range(0, SIZE_n, 64):
        i_n = s_n + tl.arange(0, BLOCK_n)
        H = tl.load(H_ptr + i_m[:, None] * 128 + i_n[None, :])  # [m, n]
        E = tl.exp(H - tl.where(tl.abs(M[:, None]) == float("inf"), 0.0, M[:, None]))  # [m, n]
        Y = quotient(E, L[:, None])  # [m, n]
        tl.store(Y_ptr + i_m[:, None] * 128 + i_n[None, :], Y.to(tl.float32))
