# mugraph g float16
# dims m=20 k=101 n=24
# input X f16[m, k]
# input G f16[k]
# input W f16[k, n]
# output Y f16[m, n]
#
# kernel k0 generated m:grid n:grid k:loop  # grid (m, n), for-loop over k
#   X = load X[m, k]                        # imap {x→m, y→φ} fmap {i→k}
#   G = load G[k]                           # imap {x→φ, y→φ} fmap {i→k}
#   W = load W[k, n]                        # imap {x→φ, y→n} fmap {i→k}
#   V[m, k] = mul(X, G)                     # loop over k
#   Y[m, n] = dot(V, W; k)                  # loop over k: accumulator
#   store Y[m, n] = Y                       # omap {x→m, y→n}
# schedule
# k0: m=16 n=16 k=32 order=m,k,n warps=1 stages=3


# k0: 4 programs, num_warps=1, num_stages=3, of X, G, W, Y
@triton.jit
def k0(X_ptr, G_ptr, W_ptr, Y_ptr):
    SIZE_m: tl.constexpr = 20
    BLOCK_m: tl.constexpr = 16
    SIZE_n: tl.constexpr = 24
    BLOCK_n: tl.constexpr = 16
    SIZE_k: tl.constexpr = 101
    BLOCK_k: tl.constexpr = 32
    pid = tl.program_id(0)
    t_n = pid % 2
    pid = pid // 2
    t_m = pid
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    in_m = i_m < SIZE_m
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    in_n = i_n < SIZE_n
    Y = tl.zeros([BLOCK_m, BLOCK_n], tl.float32)
    i_k = tl.arange(0, BLOCK_k)
    in_k = i_k < SIZE_k
    G_next = tl.load(G_ptr + i_k, mask=in_k, other=0)  # [k]
    for s_k in range(0, SIZE_k, 32):
        G = G_next
        i_k = s_k + 32 + tl.arange(0, BLOCK_k)
        in_k = i_k < SIZE_k
        G_next = tl.load(G_ptr + i_k, mask=in_k & (s_k + 32 < SIZE_k), other=0)  # [k]
        i_k = s_k + tl.arange(0, BLOCK_k)
        in_k = i_k < SIZE_k
        X = tl.load(X_ptr + i_m[:, None] * 101 + i_k[None, :], mask=(in_m[:, None]) & (in_k[None, :]), other=0)  # [m, k]
        W = tl.load(W_ptr + i_k[:, None] * 24 + i_n[None, :], mask=(in_k[:, None]) & (in_n[None, :]), other=0)  # [k, n]
        V = (X.to(tl.float32) * G.to(tl.float32)[None, :])  # [m, k]
        Y = tl.dot(V.to(tl.float16), W, Y)  # [m, n]
    tl.store(Y_ptr + i_m[:, None] * 24 + i_n[None, :], Y.to(tl.float16), mask=(in_m[:, None]) & (in_n[None, :]))
