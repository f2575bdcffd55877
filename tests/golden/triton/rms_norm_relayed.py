# mugraph rmsnorm_linear float16
# dims m=16 k=4096 n=6144
# input X f16[m, k]
# input G f16[k]
# input W f16[k, n]
# output O f16[m, n]
# buffer Y f16[m, k]
#
# kernel k0 generated m:grid k:tile  # grid (m)
#   X = load X[m, k]                 # imap {x→m}
#   G = load G[k]                    # imap {x→φ}
#   t1[m, k] = square(X)
#   t2[m] = sum(t1; k)
#   t3[] = size(k)
#   t4[m] = div(t2, t3)
#   t5[m] = add(t4, 1e-06)
#   t6[m] = rsqrt(t5)
#   t0[m, k] = mul(X, t6)
#   Y[m, k] = mul(t0, G)
#   store Y[m, k] = Y                # omap {x→m}
#
# kernel k1 generated m:grid k:loop n:grid  # grid (m, n), for-loop over k
#   W = load W[k, n]                        # imap {x→φ, y→n} fmap {i→k}
#   Y = load Y[m, k]                        # imap {x→m, y→φ} fmap {i→k}
#   O[m, n] = dot(Y, W; k)                  # loop over k: accumulator
#   store O[m, n] = O                       # omap {x→m, y→n}
# schedule
# k0: m=1 order=m,k warps=8 stages=3 overlap stream fetch relay read
# k1: m=16 k=128 n=64 order=n,k,m warps=4 stages=5 overlap ahead=2 lead=5


# k0: 16 programs, num_warps=8, num_stages=3, launch_pdl=can_overlap(), of X, G, Y
@triton.jit
def k0(X_ptr, G_ptr, Y_ptr):
    SIZE_m: tl.constexpr = 16
    SIZE_k: tl.constexpr = 4096
    BLOCK_k: tl.constexpr = 4096
    pid = tl.program_id(0)
    t_m = pid
    i_m = t_m
    i_k = tl.arange(0, BLOCK_k)
    release_next()
    fetch(X_ptr + i_m * 4096 + (0 + tl.arange(0, 64) * 64), read=True)  # [k]
    fetch(G_ptr + (0 + tl.arange(0, 64) * 64), read=True)  # [k]
    wait_for_data()
    X = tl.load(X_ptr + i_m * 4096 + i_k, eviction_policy="evict_first")  # [k]
    G = tl.load(G_ptr + i_k)  # [k]
    t1 = (X.to(tl.float32) * X.to(tl.float32))  # [k]
    t2 = tl.sum(t1, axis=0)  # []
    t3 = tl.full((), 4096.0, tl.float32)  # []
    t4 = (t2 * 0.000244140625)  # []
    t5 = (t4 + 1e-06)  # []
    t6 = tl.rsqrt(t5)  # []
    t0 = (X.to(tl.float32) * t6)  # [k]
    Y = (t0 * G.to(tl.float32))  # [k]
    tl.store(Y_ptr + i_m * 4096 + i_k, Y.to(tl.float16))


# k1: 96 programs, num_warps=4, num_stages=5, launch_pdl=can_overlap(), of W, Y, O
@triton.jit
def k1(W_ptr, Y_ptr, O_ptr):
    SIZE_m: tl.constexpr = 16
    BLOCK_m: tl.constexpr = 16
    SIZE_k: tl.constexpr = 4096
    BLOCK_k: tl.constexpr = 128
    SIZE_n: tl.constexpr = 6144
    BLOCK_n: tl.constexpr = 64
    pid = tl.program_id(0)
    t_n = pid
    i_m = tl.arange(0, BLOCK_m)
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    for s_k in range(0, bound(min(SIZE_k, 256)), 128):
        i_k = s_k + tl.arange(0, BLOCK_k)
        fetch(W_ptr + (s_k + tl.arange(0, 128)) * 6144 + (t_n * BLOCK_n), read=False)  # [k]
    wait_for_data()
    O = tl.zeros([BLOCK_n, BLOCK_m], tl.float32)
    for s_k in range(0, SIZE_k, 128):
        i_k = s_k + tl.arange(0, BLOCK_k)
        release_before(SIZE_k - s_k, 640)
        W = tl.load(W_ptr + i_k[None, :] * 6144 + i_n[:, None])  # [n, k]
        Y = tl.load(Y_ptr + i_m[None, :] * 4096 + i_k[:, None])  # [k, m]
        O = tl.dot(W, Y, O)  # [n, m]
    release_next()
    tl.store(O_ptr + i_m[None, :] * 6144 + i_n[:, None], O.to(tl.float16))
