# mugraph gated_mlp float16
# dims m=64 k=4096 n=4096
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
# k0: m=64 k=128 n=32 order=m,k,n warps=4 stages=5 overlap descriptors ahead=4 share=8


# k0: 128 programs, num_warps=4, num_stages=5, launch_pdl=can_overlap(), of W1, O
#   W1[k, n] in boxes of (128, 32)
#   W2[k, n] in boxes of (128, 32)
#   X[m, k] in boxes of (64, 128)
@triton.jit
def k0(W1_ptr, O_ptr, W1_desc, W2_desc, X_desc):
    SIZE_m: tl.constexpr = 64
    BLOCK_m: tl.constexpr = 64
    SIZE_k: tl.constexpr = 4096
    BLOCK_k: tl.constexpr = 128
    SIZE_n: tl.constexpr = 4096
    BLOCK_n: tl.constexpr = 32
    pid = tl.program_id(0)
    t_n = pid
    i_m = tl.arange(0, BLOCK_m)
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    for s_k in range(0, bound(min(SIZE_k, 512)), 512):
        i_k = s_k + tl.arange(0, BLOCK_k)
        fetch(W1_ptr + (tl.minimum(s_k + tl.arange(0, 128) // 32 * 128 + tl.arange(0, 128) % 32, SIZE_k - 1)) * 4096 + (t_n * BLOCK_n), read=False)  # [k]
    wait_for_data()
    U = tl.zeros([BLOCK_m, BLOCK_n], tl.float32)
    V = tl.zeros([BLOCK_m, BLOCK_n], tl.float32)
    for s_k in range(0, SIZE_k, 128):
        i_k = s_k + tl.arange(0, BLOCK_k)
        W1 = W1_desc.load([s_k, t_n * BLOCK_n])  # [k, n]
        W2 = W2_desc.load([s_k, t_n * BLOCK_n])  # [k, n]
        X = X_desc.load([0, s_k])  # [m, k]
        U = tl.dot(X, W1, U)  # [m, n]
        V = tl.dot(X, W2, V)  # [m, n]
    release_next()
    t2 = (U * tl.sigmoid(U))  # [m, n]
    O = (t2 * V)  # [m, n]
    tl.store(O_ptr + i_m[:, None] * 4096 + i_n[None, :], O.to(tl.float16))
