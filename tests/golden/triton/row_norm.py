# mugraph ntrans float16
# dims m=8 k=4096
# input H f16[m, k]
# input X f16[m, k]
# input A f16[m, k]
# output O f16[m, k]
#
# kernel k0 generated m:grid k:tile  # grid (m)
#   X = load X[m, k]                 # imap {x→m}
#   H = load H[m, k]                 # imap {x→m}
#   A = load A[m, k]                 # imap {x→m}
#   t0[m, k] = mul(H, H)
#   t1[m] = sum(t0; k)
#   v0[m] = rsqrt(t1)
#   N[m, k] = mul(v0, H)
#   t4[m, k] = sub(N, X)
#   t5[m, k] = mul(A, t4)
#   Y[m, k] = add(X, t5)
#   t7[m, k] = mul(Y, Y)
#   t8[m] = sum(t7; k)
#   t9[m] = sqrt(t8)
#   O[m, k] = div(Y, t9)
#   store O[m, k] = O                # omap {x→m}
# schedule
# k0: m=1 order=m,k warps=4 stages=3 overlap fetch read


# k0: 8 programs, num_warps=4, num_stages=3, launch_pdl=can_overlap(), of X, H, A, O
@triton.jit
def k0(X_ptr, H_ptr, A_ptr, O_ptr):
    SIZE_m: tl.constexpr = 8
    SIZE_k: tl.constexpr = 4096
    BLOCK_k: tl.constexpr = 4096
    pid = tl.program_id(0)
    t_m = pid
    i_m = t_m
    i_k = tl.arange(0, BLOCK_k)
    fetch(X_ptr + i_m * 4096 + (0 + tl.arange(0, 64) * 64), read=True)  # [k]
    fetch(H_ptr + i_m * 4096 + (0 + tl.arange(0, 64) * 64), read=True)  # [k]
    fetch(A_ptr + i_m * 4096 + (0 + tl.arange(0, 64) * 64), read=True)  # [k]
    wait_for_data()
    release_next()
    X = tl.load(X_ptr + i_m * 4096 + i_k)  # [k]
    H = tl.load(H_ptr + i_m * 4096 + i_k)  # [k]
    A = tl.load(A_ptr + i_m * 4096 + i_k)  # [k]
    t0 = (H.to(tl.float32) * H.to(tl.float32))  # [k]
    t1 = tl.sum(t0, axis=0)  # []
    v0 = tl.rsqrt(t1)  # []
    N = (v0 * H.to(tl.float32))  # [k]
    t4 = (N - X.to(tl.float32))  # [k]
    t5 = (A.to(tl.float32) * t4)  # [k]
    Y = (X.to(tl.float32) + t5)  # [k]
    t7 = (Y * Y)  # [k]
    t8 = tl.sum(t7, axis=0)  # []
    t9 = tl.sqrt(t8)  # []
    O = (Y / t9)  # [k]
    tl.store(O_ptr + i_m * 4096 + i_k, O.to(tl.float16))
