# mugraph gqa_decode float16
# dims b=8 h=2 g=8 s=8192 d=128 e=128
# input Q f16[b, h, g, d]
# input K f16[b, s, h, d]
# input V f16[b, s, h, e]
# output O f16[b, h, g, e]
# buffer t2_part f32[s_split, b, h, g]
# buffer t5_part f32[s_split, b, h, g]
# buffer v0_part f32[s_split, b, h, g, e]
#
# kernel k0 generated b:grid h:grid g:grid s:split d:tile e:grid  # grid (b, h, g, e, s_split), for-loop over s
#   K = load K[b, s, h, d]                                        # imap {x→b, y→h, z→φ, u→φ, v→s} fmap {i→s}
#   Q = load Q[b, h, g, d]                                        # imap {x→b, y→h, z→g, u→φ, v→φ}
#   V = load V[b, s, h, e]                                        # imap {x→b, y→h, z→φ, u→e, v→s} fmap {i→s}
#   t0[b, h, g, s] = dot(Q, K; d)                                 # loop over s
#   t1[b, h, g, s] = mul(t0, 562949953421312/6369051672525773)    # loop over s
#   t2[b, h, g] = max(t1; s)                                      # loop over s: running maximum
#   t4[b, h, g, s] = exp_sub(t1, t2)                              # loop over s
#   t5[b, h, g] = sum(t4; s)                                      # loop over s: accumulator, rescaled by exp(Δt2)^1
#   v0[b, h, g, e] = dot(V, t4; s)                                # loop over s: accumulator, rescaled by exp(Δt2)^1
#   store t2_part[s_split, b, h, g] = t2                          # omap {x→b, y→h, z→g, v→s_split}
#   store t5_part[s_split, b, h, g] = t5                          # omap {x→b, y→h, z→g, v→s_split}
#   store v0_part[s_split, b, h, g, e] = v0                       # omap {x→b, y→h, z→g, u→e, v→s_split}
#
# kernel k1 generated s_split:tile b:grid h:grid g:grid e:grid  # grid (b, h, g, e)
#   t2_part = load t2_part[s_split, b, h, g]                    # imap {x→b, y→h, z→g, u→φ}
#   t5_part = load t5_part[s_split, b, h, g]                    # imap {x→b, y→h, z→g, u→φ}
#   v0_part = load v0_part[s_split, b, h, g, e]                 # imap {x→b, y→h, z→g, u→e}
#   t2[b, h, g] = max(t2_part; s_split)
#   t2_scale[s_split, b, h, g] = exp_sub(t2_part, t2)
#   t5_t2_0[s_split, b, h, g] = mul(t5_part, t2_scale)
#   t5[b, h, g] = sum(t5_t2_0; s_split)
#   v0_t2_0[s_split, b, h, g, e] = mul(v0_part, t2_scale)
#   v0[b, h, g, e] = sum(v0_t2_0; s_split)
#   O[b, h, g, e] = div(v0, t5)
#   store O[b, h, g, e] = O                                     # omap {x→b, y→h, z→g, u→e}
# schedule
# k0: b=1 h=1 g=16 s=128 e=128 order=b,h,g,d,s,e warps=4 stages=3 split=8 overlap descriptors fetch ahead=6 lead=6 share=4
# k1: b=1 h=1 g=1 e=64 order=s_split,b,h,g,e warps=1 stages=3 group=4 overlap stream relay


# k0: 128 programs, num_warps=4, num_stages=3, launch_pdl=can_overlap(), of K, Q, t2_part, t5_part, v0_part
#   K[b, h, s, d] in boxes of (1, 1, 128, 128)
#   V[b, h, s, e] in boxes of (1, 1, 128, 128)
@triton.jit
def k0(K_ptr, Q_ptr, t2_part_ptr, t5_part_ptr, v0_part_ptr, K_desc, V_desc):
    SIZE_b: tl.constexpr = 8
    SIZE_h: tl.constexpr = 2
    SIZE_g: tl.constexpr = 8
    BLOCK_g: tl.constexpr = 16
    SIZE_s: tl.constexpr = 8192
    BLOCK_s: tl.constexpr = 128
    SIZE_e: tl.constexpr = 128
    BLOCK_e: tl.constexpr = 128
    SIZE_d: tl.constexpr = 128
    BLOCK_d: tl.constexpr = 128
    pid = tl.program_id(0)
    chunk = pid // 16
    pid = pid % 16
    t_h = pid % 2
    pid = pid // 2
    t_b = pid
    i_b = t_b
    i_h = t_h
    i_g = tl.arange(0, BLOCK_g)
    in_g = i_g < SIZE_g
    i_e = tl.arange(0, BLOCK_e)
    i_d = tl.arange(0, BLOCK_d)
    fetch(Q_ptr + i_b * 2048 + i_h * 1024 + (tl.minimum(i_g, SIZE_g - 1))[:, None] * 128 + (0 + tl.arange(0, 2) * 64)[None, :], read=False)  # [g, d]
    for s_s in range(bound(chunk * 1024), bound(min(chunk * 1024 + 1024, chunk * 1024 + 768)), 128):
        i_s = s_s + tl.arange(0, BLOCK_s)
        fetch(K_ptr + i_b * 2097152 + (s_s + tl.arange(0, 64))[None, :] * 256 + i_h * 128 + (0 + tl.arange(0, 2) * 64)[:, None], read=False)  # [d, s]
    wait_for_data()
    Q = tl.load(Q_ptr + i_b * 2048 + i_h * 1024 + i_g[:, None] * 128 + i_d[None, :], mask=in_g[:, None], other=0)  # [g, d]
    t2 = tl.full([BLOCK_g], float("-inf"), tl.float32)
    t5 = tl.zeros([BLOCK_g], tl.float32)
    v0 = tl.zeros([BLOCK_g, BLOCK_e], tl.float32)
    for s_s in range(bound(chunk * 1024), bound(chunk * 1024 + 1024), 128):
        i_s = s_s + tl.arange(0, BLOCK_s)
        release_before(bound(chunk * 1024 + 1024) - s_s, 768)
        K = tl.permute(tl.reshape(K_desc.load([t_b, t_h, s_s, 0]), [BLOCK_s, BLOCK_d]), (1, 0))  # [d, s]
        V = tl.reshape(V_desc.load([t_b, t_h, s_s, 0]), [BLOCK_s, BLOCK_e])  # [s, e]
        t0 = tl.dot(Q, K)  # [g, s]
        t1 = t0  # [g, s]
        t2_next = tl.maximum(t2, tl.max(t1, axis=1))  # running maximum
        t2_shift = tl.where(tl.abs(t2_next) == float("inf"), 0.0, t2_next)
        t2_scale = tl.exp2((t2 - t2_shift) * 0.12751743082459868)
        t2_shift = t2_shift * 0.12751743082459868
        t2 = t2_next
        t4 = tl.exp2(t1 * 0.12751743082459868 - t2_shift[:, None])  # [g, s]
        t5 = t5 * t2_scale
        t5 += tl.sum(t4, axis=1)  # [g]
        v0 = v0 * t2_scale[:, None]
        v0 = tl.dot(t4.to(tl.float16), V, v0)  # [g, e]
    t2 = (t2 * 0.08838834764831843)  # [g]
    release_next()
    tl.store(t2_part_ptr + chunk * 128 + i_b * 16 + i_h * 8 + i_g, t2.to(tl.float32), mask=in_g)
    tl.store(t5_part_ptr + chunk * 128 + i_b * 16 + i_h * 8 + i_g, t5.to(tl.float32), mask=in_g)
    tl.store(v0_part_ptr + chunk * 16384 + i_b * 2048 + i_h * 1024 + i_g[:, None] * 128 + i_e[None, :], v0.to(tl.float32), mask=in_g[:, None])


# k1: 256 programs, num_warps=1, num_stages=3, launch_pdl=can_overlap(), of t2_part, t5_part, v0_part, O
@triton.jit
def k1(t2_part_ptr, t5_part_ptr, v0_part_ptr, O_ptr):
    SIZE_b: tl.constexpr = 8
    SIZE_h: tl.constexpr = 2
    SIZE_g: tl.constexpr = 8
    SIZE_e: tl.constexpr = 128
    BLOCK_e: tl.constexpr = 64
    SIZE_s_split: tl.constexpr = 8
    BLOCK_s_split: tl.constexpr = 8
    pid = tl.program_id(0)
    t_e = pid % 2
    pid = pid // 2
    t_g = pid % 8
    pid = pid // 8
    first_b = pid // 8 * 4  # groups of 4 tiles of b share those of h
    rows_b = min(8 - first_b, 4)
    t_b = first_b + pid % 8 % rows_b
    t_h = pid % 8 // rows_b
    i_b = t_b
    i_h = t_h
    i_g = t_g
    i_e = t_e * BLOCK_e + tl.arange(0, BLOCK_e)
    i_s_split = tl.arange(0, BLOCK_s_split)
    release_next()
    wait_for_data()
    t2_part = tl.load(t2_part_ptr + i_s_split * 128 + i_b * 16 + i_h * 8 + i_g)  # [s_split]
    t5_part = tl.load(t5_part_ptr + i_s_split * 128 + i_b * 16 + i_h * 8 + i_g)  # [s_split]
    v0_part = tl.load(v0_part_ptr + i_s_split[:, None] * 16384 + i_b * 2048 + i_h * 1024 + i_g * 128 + i_e[None, :], eviction_policy="evict_first")  # [s_split, e]
    t2 = tl.max(t2_part, axis=0)  # []
    v_t2_scale_ = tl.exp(t2_part - tl.where(tl.abs(t2) == float("inf"), 0.0, t2))  # [s_split]
    t5_t2_0 = (t5_part * v_t2_scale_)  # [s_split]
    t5 = tl.sum(t5_t2_0, axis=0)  # []
    v0_t2_0 = (v0_part * v_t2_scale_[:, None])  # [s_split, e]
    v0 = tl.sum(v0_t2_0, axis=0)  # [e]
    O = (v0 / t5)  # [e]
    tl.store(O_ptr + i_b * 2048 + i_h * 1024 + i_g * 128 + i_e, O.to(tl.float16))
