# mugraph gated_mlp float16
# dims m=8 k=4096 n=4096
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
# k0: m=16 k=128 n=64 order=n,k,m warps=4 stages=5 overlap ahead=4 lead=5 share=2


# k0: 64 programs, num_warps=4, num_stages=5, launch_pdl=can_overlap(), of W1, W2, X, O
@triton.jit
def k0(W1_ptr, W2_ptr, X_ptr, O_ptr):
    SIZE_m: tl.constexpr = 8
    BLOCK_m: tl.constexpr = 16
    SIZE_k: tl.constexpr = 4096
    BLOCK_k: tl.constexpr = 128
    SIZE_n: tl.constexpr = 4096
    BLOCK_n: tl.constexpr = 64
    pid = tl.program_id(0)
    t_n = pid
    i_m = tl.arange(0, BLOCK_m)
    in_m = i_m < SIZE_m
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    for s_k in range(0, bound(min(SIZE_k, 512)), 128):
        i_k = s_k + tl.arange(0, BLOCK_k)
        fetch(W1_ptr + (s_k + tl.arange(0, 128)) * 4096 + (t_n * BLOCK_n), read=False)  # [k]
    wait_for_data()
    U = tl.zeros([BLOCK_n, BLOCK_m], tl.float32)
    V = tl.zeros([BLOCK_n, BLOCK_m], tl.float32)
    for s_k in range(0, SIZE_k, 128):
        i_k = s_k + tl.arange(0, BLOCK_k)
        release_before(SIZE_k - s_k, 640)
        W1 = tl.load(W1_ptr + i_k[None, :] * 4096 + i_n[:, None])  # [n, k]
        W2 = tl.load(W2_ptr + i_k[None, :] * 4096 + i_n[:, None])  # [n, k]
        X = tl.load(X_ptr + i_m[None, :] * 4096 + i_k[:, None], mask=in_m[None, :], other=0)  # [k, m]
        U = tl.dot(W1, X, U)  # [n, m]
        V = tl.dot(W2, X, V)  # [n, m]
    release_next()
    t2 = (U * tl.sigmoid(U))  # [n, m]
    O = (t2 * V)  # [n, m]
    tl.store(O_ptr + i_m[None, :] * 4096 + i_n[:, None], O.to(tl.float16), mask=in_m[None, :])
