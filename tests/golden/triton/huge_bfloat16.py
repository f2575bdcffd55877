# mugraph huge bfloat16
# dims m=1000000 k=4096
# input X bf16[m, k]
# input G bf16[k]
# output Y bf16[m, k]
#
# kernel k0 generated m:grid k:grid  # grid (m, k)
#   X = load X[m, k]                 # imap {x→m, y→k}
#   G = load G[k]                    # imap {x→φ, y→k}
#   Y[m, k] = mul(X, G)
#   store Y[m, k] = Y                # omap {x→m, y→k}
# schedule
# k0: m=8 k=512 order=m,k warps=4 stages=3 stream


# k0: 1000000 programs, num_warps=4, num_stages=3, of X, G, Y
@triton.jit
def k0(X_ptr, G_ptr, Y_ptr):
    SIZE_m: tl.constexpr = 1000000
    BLOCK_m: tl.constexpr = 8
    SIZE_k: tl.constexpr = 4096
    BLOCK_k: tl.constexpr = 512
    pid = tl.program_id(0)
    t_k = pid % 8
    pid = pid // 8
    t_m = pid
    i_m = (t_m * BLOCK_m).to(tl.int64) + tl.arange(0, BLOCK_m)
    i_k = (t_k * BLOCK_k).to(tl.int64) + tl.arange(0, BLOCK_k)
    X = tl.load(X_ptr + i_m[:, None] * 4096 + i_k[None, :], eviction_policy="evict_first")  # [m, k]
    G = tl.load(G_ptr + i_k)  # [k]
    Y = (X.to(tl.float32) * G.to(tl.float32)[None, :])  # [m, k]
    tl.store(Y_ptr + i_m[:, None] * 4096 + i_k[None, :], to_bfloat16(Y))
