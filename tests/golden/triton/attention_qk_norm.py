# mugraph qknorm_gqa float16
# dims h=2 q=256 s=4096 d=64 e=64
# input Q f16[h, q, d]
# input K f16[h, s, d]
# input V f16[h, s, e]
# input GQ f16[d]
# input GK f16[d]
# output O f16[h, q, e]
# buffer t18_part f32[s_split, h, q]
# buffer t21_part f32[s_split, h, q]
# buffer v2_part f32[s_split, h, q, e]
#
# kernel k0 generated h:grid q:grid s:split d:tile e:grid  # grid (h, q, e, s_split), for-loop over s
#   GK = load GK[d]                                        # imap {x→φ, y→φ, z→φ, u→φ}
#   V = load V[h, s, e]                                    # imap {x→h, y→φ, z→e, u→s} fmap {i→s}
#   Q = load Q[h, q, d]                                    # imap {x→h, y→q, z→φ, u→φ}
#   K = load K[h, s, d]                                    # imap {x→h, y→φ, z→φ, u→s} fmap {i→s}
#   GQ = load GQ[d]                                        # imap {x→φ, y→φ, z→φ, u→φ}
#   t1[h, q, d] = square(Q)                                # before the loop
#   t6[] = size(d)                                         # before the loop
#   t3[h, q] = sum(t1; d)                                  # before the loop
#   t7[h, q] = div(t3, t6)                                 # before the loop
#   t8[h, q] = add(t7, 1e-06)                              # before the loop
#   t9[h, q] = rsqrt(t8)                                   # before the loop
#   v0[h, q, d] = mul(GQ, t9)                              # before the loop
#   Qn[h, q, d] = mul(v0, Q)                               # before the loop
#   t10[h, s, d] = square(K)                               # loop over s
#   t11[h, s] = sum(t10; d)                                # loop over s
#   t13[h, s] = div(t11, t6)                               # loop over s
#   t14[h, s] = add(t13, 1e-06)                            # loop over s
#   t15[h, s] = rsqrt(t14)                                 # loop over s
#   v1[h, s, d] = mul(GK, t15)                             # loop over s
#   Kn[h, s, d] = mul(v1, K)                               # loop over s
#   t4[h, q, s] = dot(Qn, Kn; d)                           # loop over s
#   t5[h, q, s] = div(t4, 8)                               # loop over s
#   t18[h, q] = max(t5; s)                                 # loop over s: running maximum
#   t20[h, q, s] = exp_sub(t5, t18)                        # loop over s
#   t21[h, q] = sum(t20; s)                                # loop over s: accumulator, rescaled by exp(Δt18)^1
#   v2[h, q, e] = dot(V, t20; s)                           # loop over s: accumulator, rescaled by exp(Δt18)^1
#   store t18_part[s_split, h, q] = t18                    # omap {x→h, y→q, u→s_split}
#   store t21_part[s_split, h, q] = t21                    # omap {x→h, y→q, u→s_split}
#   store v2_part[s_split, h, q, e] = v2                   # omap {x→h, y→q, z→e, u→s_split}
#
# kernel k1 generated s_split:tile h:grid q:grid e:grid   # grid (h, q, e)
#   t18_part = load t18_part[s_split, h, q]               # imap {x→h, y→q, z→φ}
#   t21_part = load t21_part[s_split, h, q]               # imap {x→h, y→q, z→φ}
#   v2_part = load v2_part[s_split, h, q, e]              # imap {x→h, y→q, z→e}
#   t18[h, q] = max(t18_part; s_split)
#   t18_scale[s_split, h, q] = exp_sub(t18_part, t18)
#   t21_t18_0[s_split, h, q] = mul(t21_part, t18_scale)
#   t21[h, q] = sum(t21_t18_0; s_split)
#   v2_t18_0[s_split, h, q, e] = mul(v2_part, t18_scale)
#   v2[h, q, e] = sum(v2_t18_0; s_split)
#   O[h, q, e] = div(v2, t21)
#   store O[h, q, e] = O                                  # omap {x→h, y→q, z→e}
# schedule
# k0: h=1 q=64 s=128 e=64 order=h,q,d,s,e warps=4 stages=3 split=16 group=4 overlap descriptors early fetch read ahead=1
# k1: h=1 q=1 e=64 order=s_split,h,q,e warps=1 stages=3 overlap stream relay


# k0: 128 programs, num_warps=4, num_stages=3, launch_pdl=can_overlap(), of GK, V, Q, K, GQ, t18_part, t21_part, v2_part
#   V[h, s, e] in boxes of (1, 128, 64)
#   K[h, s, d] in boxes of (1, 128, 64)
@triton.jit
def k0(GK_ptr, V_ptr, Q_ptr, K_ptr, GQ_ptr, t18_part_ptr, t21_part_ptr, v2_part_ptr, V_desc, K_desc):
    SIZE_h: tl.constexpr = 2
    SIZE_q: tl.constexpr = 256
    BLOCK_q: tl.constexpr = 64
    SIZE_s: tl.constexpr = 4096
    BLOCK_s: tl.constexpr = 128
    SIZE_e: tl.constexpr = 64
    BLOCK_e: tl.constexpr = 64
    SIZE_d: tl.constexpr = 64
    BLOCK_d: tl.constexpr = 64
    pid = tl.program_id(0)
    chunk = pid // 8
    pid = pid % 8
    first_h = pid // 16 * 4  # groups of 4 tiles of h share those of q
    rows_h = min(2 - first_h, 4)
    t_h = first_h + pid % 16 % rows_h
    t_q = pid % 16 // rows_h
    i_h = t_h
    i_q = t_q * BLOCK_q + tl.arange(0, BLOCK_q)
    i_e = tl.arange(0, BLOCK_e)
    i_d = tl.arange(0, BLOCK_d)
    fetch(GK_ptr + (0), read=True)  # []
    fetch(Q_ptr + i_h * 16384 + i_q * 64 + (0), read=True)  # [q]
    fetch(GQ_ptr + (0), read=True)  # []
    for s_s in range(bound(chunk * 256), bound(min(chunk * 256 + 256, chunk * 256 + 128)), 128):
        i_s = s_s + tl.arange(0, BLOCK_s)
        fetch(V_ptr + i_h * 262144 + (s_s + tl.arange(0, 128)) * 64 + (0), read=False)  # [s]
        fetch(K_ptr + i_h * 262144 + (s_s + tl.arange(0, 128)) * 64 + (0), read=False)  # [s]
    wait_for_data()
    release_next()
    GK = tl.load(GK_ptr + i_d)  # [d]
    Q = tl.load(Q_ptr + i_h * 16384 + i_q[:, None] * 64 + i_d[None, :])  # [q, d]
    GQ = tl.load(GQ_ptr + i_d)  # [d]
    t1 = (Q.to(tl.float32) * Q.to(tl.float32))  # [q, d]
    t6 = tl.full((), 64.0, tl.float32)  # []
    t3 = tl.sum(t1, axis=1)  # [q]
    t7 = (t3 * 0.015625)  # [q]
    t8 = (t7 + 1e-06)  # [q]
    t9 = tl.rsqrt(t8)  # [q]
    v0 = (GQ.to(tl.float32)[None, :] * t9[:, None])  # [q, d]
    Qn = (v0 * Q.to(tl.float32))  # [q, d]
    t18 = tl.full([BLOCK_q], float("-inf"), tl.float32)
    t21 = tl.zeros([BLOCK_q], tl.float32)
    v2 = tl.zeros([BLOCK_q, BLOCK_e], tl.float32)
    for s_s in range(bound(chunk * 256), bound(chunk * 256 + 256), 128):
        i_s = s_s + tl.arange(0, BLOCK_s)
        V = tl.reshape(V_desc.load([t_h, s_s, 0]), [BLOCK_s, BLOCK_e])  # [s, e]
        K = tl.permute(tl.reshape(K_desc.load([t_h, s_s, 0]), [BLOCK_s, BLOCK_d]), (1, 0))  # [d, s]
        t10 = (K.to(tl.float32) * K.to(tl.float32))  # [d, s]
        t11 = tl.sum(t10, axis=0)  # [s]
        t13 = (t11 * 0.015625)  # [s]
        t14 = (t13 + 1e-06)  # [s]
        t15 = tl.rsqrt(t14)  # [s]
        v1 = (GK.to(tl.float32)[:, None] * t15[None, :])  # [d, s]
        Kn = (v1 * K.to(tl.float32))  # [d, s]
        t4 = tl.dot(Qn.to(tl.float16), Kn.to(tl.float16))  # [q, s]
        t5 = t4  # [q, s]
        t18_next = tl.maximum(t18, tl.max(t5, axis=1))  # running maximum
        t18_shift = tl.where(tl.abs(t18_next) == float("inf"), 0.0, t18_next)
        t18_scale = tl.exp2((t18 - t18_shift) * 0.18033688011112042)
        t18_shift = t18_shift * 0.18033688011112042
        t18 = t18_next
        t20 = tl.exp2(t5 * 0.18033688011112042 - t18_shift[:, None])  # [q, s]
        t21 = t21 * t18_scale
        t21 += tl.sum(t20, axis=1)  # [q]
        v2 = v2 * t18_scale[:, None]
        v2 = tl.dot(t20.to(tl.float16), V, v2)  # [q, e]
    t18 = (t18 * 0.125)  # [q]
    tl.store(t18_part_ptr + chunk * 512 + i_h * 256 + i_q, t18.to(tl.float32))
    tl.store(t21_part_ptr + chunk * 512 + i_h * 256 + i_q, t21.to(tl.float32))
    tl.store(v2_part_ptr + chunk * 32768 + i_h * 16384 + i_q[:, None] * 64 + i_e[None, :], v2.to(tl.float32))


# k1: 512 programs, num_warps=1, num_stages=3, launch_pdl=can_overlap(), of t18_part, t21_part, v2_part, O
@triton.jit
def k1(t18_part_ptr, t21_part_ptr, v2_part_ptr, O_ptr):
    SIZE_h: tl.constexpr = 2
    SIZE_q: tl.constexpr = 256
    SIZE_e: tl.constexpr = 64
    BLOCK_e: tl.constexpr = 64
    SIZE_s_split: tl.constexpr = 16
    BLOCK_s_split: tl.constexpr = 16
    pid = tl.program_id(0)
    t_q = pid % 256
    pid = pid // 256
    t_h = pid
    i_h = t_h
    i_q = t_q
    i_e = tl.arange(0, BLOCK_e)
    i_s_split = tl.arange(0, BLOCK_s_split)
    release_next()
    wait_for_data()
    t18_part = tl.load(t18_part_ptr + i_s_split * 512 + i_h * 256 + i_q, eviction_policy="evict_first")  # [s_split]
    t21_part = tl.load(t21_part_ptr + i_s_split * 512 + i_h * 256 + i_q, eviction_policy="evict_first")  # [s_split]
    v2_part = tl.load(v2_part_ptr + i_s_split[:, None] * 32768 + i_h * 16384 + i_q * 64 + i_e[None, :], eviction_policy="evict_first")  # [s_split, e]
    t18 = tl.max(t18_part, axis=0)  # []
    v_t18_scale_ = tl.exp(t18_part - tl.where(tl.abs(t18) == float("inf"), 0.0, t18))  # [s_split]
    t21_t18_0 = (t21_part * v_t18_scale_)  # [s_split]
    t21 = tl.sum(t21_t18_0, axis=0)  # []
    v2_t18_0 = (v2_part * v_t18_scale_[:, None])  # [s_split, e]
    v2 = tl.sum(v2_t18_0, axis=0)  # [e]
    O = (v2 / t21)  # [e]
    tl.store(O_ptr + i_h * 16384 + i_q * 64 + i_e, O.to(tl.float16))
