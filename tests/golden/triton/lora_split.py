# mugraph lora float16
# dims m=8 k=4096 n=4096 r=16
# input X f16[m, k]
# input W f16[k, n]
# input A f16[k, r]
# input B f16[r, n]
# output O f16[m, n]
# buffer t0_part f32[k_split, m, n]
# buffer t1_part f32[k_split, m, r]
#
# kernel k0 generated m:grid k:split n:grid r:grid  # grid (m, n, r, k_split), for-loop over k
#   W = load W[k, n]                                # imap {x→φ, y→n, z→φ, u→k} fmap {i→k}
#   X = load X[m, k]                                # imap {x→m, y→φ, z→φ, u→k} fmap {i→k}
#   A = load A[k, r]                                # imap {x→φ, y→φ, z→r, u→k} fmap {i→k}
#   t0[m, n] = dot(X, W; k)                         # loop over k: accumulator
#   t1[m, r] = dot(X, A; k)                         # loop over k: accumulator
#   store t0_part[k_split, m, n] = t0               # omap {x→m, y→n, u→k_split}
#   store t1_part[k_split, m, r] = t1               # omap {x→m, z→r, u→k_split}
#
# kernel k1 generated k_split:tile m:grid n:grid r:tile  # grid (m, n)
#   t0_part = load t0_part[k_split, m, n]                # imap {x→m, y→n}
#   t1_part = load t1_part[k_split, m, r]                # imap {x→m, y→φ}
#   B = load B[r, n]                                     # imap {x→φ, y→n}
#   t0[m, n] = sum(t0_part; k_split)
#   t1[m, r] = sum(t1_part; k_split)
#   t2[m, n] = dot(t1, B; r)
#   O[m, n] = add(t0, t2)
#   store O[m, n] = O                                    # omap {x→m, y→n}
# schedule
# k0: m=16 k=64 n=128 r=16 order=r,n,k,m warps=4 stages=5 split=4 overlap early ahead=1 share=8
# k1: m=2 n=64 order=k_split,m,r,n warps=1 stages=3 overlap fetch relay read


# k0: 128 programs, num_warps=4, num_stages=5, launch_pdl=can_overlap(), of W, X, A, t0_part, t1_part
@triton.jit
def k0(W_ptr, X_ptr, A_ptr, t0_part_ptr, t1_part_ptr):
    SIZE_m: tl.constexpr = 8
    BLOCK_m: tl.constexpr = 16
    SIZE_k: tl.constexpr = 4096
    BLOCK_k: tl.constexpr = 64
    SIZE_n: tl.constexpr = 4096
    BLOCK_n: tl.constexpr = 128
    SIZE_r: tl.constexpr = 16
    BLOCK_r: tl.constexpr = 16
    pid = tl.program_id(0)
    chunk = pid // 32
    pid = pid % 32
    t_n = pid
    i_m = tl.arange(0, BLOCK_m)
    in_m = i_m < SIZE_m
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    i_r = tl.arange(0, BLOCK_r)
    for s_k in range(bound(chunk * 1024), bound(min(chunk * 1024 + 1024, chunk * 1024 + 64)), 64):
        i_k = s_k + tl.arange(0, BLOCK_k)
        fetch(W_ptr + (s_k + tl.arange(0, 8))[None, :] * 4096 + (t_n * BLOCK_n + tl.arange(0, 2) * 64)[:, None], read=False)  # [n, k]
    wait_for_data()
    release_next()
    t0 = tl.zeros([BLOCK_n, BLOCK_m], tl.float32)
    t1 = tl.zeros([BLOCK_r, BLOCK_m], tl.float32)
    for s_k in range(bound(chunk * 1024), bound(chunk * 1024 + 1024), 64):
        i_k = s_k + tl.arange(0, BLOCK_k)
        W = tl.load(W_ptr + i_k[None, :] * 4096 + i_n[:, None])  # [n, k]
        X = tl.load(X_ptr + i_m[None, :] * 4096 + i_k[:, None], mask=in_m[None, :], other=0)  # [k, m]
        A = tl.load(A_ptr + i_k[None, :] * 16 + i_r[:, None])  # [r, k]
        t1 = tl.dot(A, X, t1)  # [r, m]
        t0 = ended(tl.dot(W, X, t0))  # [n, m]
    tl.store(t0_part_ptr + chunk * 32768 + i_m[None, :] * 4096 + i_n[:, None], t0.to(tl.float32), mask=in_m[None, :])
    if t_n == 0:  # the same for all of these instances: one of them stores
        tl.store(t1_part_ptr + chunk * 128 + i_m[None, :] * 16 + i_r[:, None], t1.to(tl.float32), mask=in_m[None, :])


# k1: 256 programs, num_warps=1, num_stages=3, launch_pdl=can_overlap(), of t0_part, t1_part, B, O
@triton.jit
def k1(t0_part_ptr, t1_part_ptr, B_ptr, O_ptr):
    SIZE_m: tl.constexpr = 8
    BLOCK_m: tl.constexpr = 2
    SIZE_n: tl.constexpr = 4096
    BLOCK_n: tl.constexpr = 64
    SIZE_k_split: tl.constexpr = 4
    BLOCK_k_split: tl.constexpr = 4
    SIZE_r: tl.constexpr = 16
    BLOCK_r: tl.constexpr = 16
    pid = tl.program_id(0)
    t_n = pid % 64
    pid = pid // 64
    t_m = pid
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    i_k_split = tl.arange(0, BLOCK_k_split)
    i_r = tl.arange(0, BLOCK_r)
    release_next()
    fetch(B_ptr + i_r * 4096 + (t_n * BLOCK_n), read=True)  # [r]
    wait_for_data()
    t0_part = tl.load(t0_part_ptr + i_k_split[:, None, None] * 32768 + i_m[None, :, None] * 4096 + i_n[None, None, :])  # [k_split, m, n]
    t1_part = tl.load(t1_part_ptr + i_k_split[:, None, None] * 128 + i_m[None, :, None] * 16 + i_r[None, None, :])  # [k_split, m, r]
    B = tl.load(B_ptr + i_r[:, None] * 4096 + i_n[None, :])  # [r, n]
    t0 = tl.sum(t0_part, axis=0)  # [m, n]
    t1 = tl.sum(t1_part, axis=0)  # [m, r]
    t2 = tl.sum(t1[:, :, None] * B.to(tl.float32)[None, :, :], axis=1)  # [m, n]
    O = (t0 + t2)  # [m, n]
    tl.store(O_ptr + i_m[:, None] * 4096 + i_n[None, :], O.to(tl.float16))
