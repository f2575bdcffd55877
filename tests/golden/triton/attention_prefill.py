# mugraph gqa_prefill float16
# dims q=4096 s=4096 h=8 g=4 d=128 e=128
# input Q f16[q, h, g, d]
# input K f16[s, h, d]
# input V f16[s, h, e]
# output O f16[q, h, g, e]
#
# kernel k0 generated q:grid s:loop h:grid g:grid d:tile e:grid  # grid (q, h, g, e), for-loop over s
#   K = load K[s, h, d]                                          # imap {x→φ, y→h, z→φ, u→φ} fmap {i→s}
#   V = load V[s, h, e]                                          # imap {x→φ, y→h, z→φ, u→e} fmap {i→s}
#   Q = load Q[q, h, g, d]                                       # imap {x→q, y→h, z→g, u→φ}
#   t2[q] = index(q)                                             # before the loop
#   t3[s] = index(s)                                             # loop over s
#   t4[q, s] = ge(t2, t3)                                        # loop over s
#   t0[q, s, h, g] = dot(Q, K; d)                                # loop over s
#   A[q, s, h, g] = mul(t0, 562949953421312/6369051672525773)    # loop over s
#   t5[q, s, h, g] = where(t4, A, -inf)                          # loop over s
#   t6[q, h, g] = max(t5; s)                                     # loop over s: running maximum
#   t8[q, s, h, g] = exp_sub(t5, t6)                             # loop over s
#   t9[q, h, g] = sum(t8; s)                                     # loop over s: accumulator, rescaled by exp(Δt6)^1
#   v0[q, h, g, e] = dot(V, t8; s)                               # loop over s: accumulator, rescaled by exp(Δt6)^1
#   O[q, h, g, e] = div(v0, t9)                                  # epilogue
#   store O[q, h, g, e] = O                                      # omap {x→q, y→h, z→g, u→e}
# schedule
# k0: q=64 s=64 h=1 g=1 e=128 order=q,d,h,g,s,e warps=4 stages=3 overlap descriptors fetch


# k0: 2048 programs, num_warps=4, num_stages=3, launch_pdl=can_overlap(), of Q, O
#   K[h, s, d] in boxes of (1, 64, 128)
#   V[h, s, e] in boxes of (1, 64, 128)
@triton.jit
def k0(Q_ptr, O_ptr, K_desc, V_desc):
    SIZE_q: tl.constexpr = 4096
    BLOCK_q: tl.constexpr = 64
    SIZE_s: tl.constexpr = 4096
    BLOCK_s: tl.constexpr = 64
    SIZE_h: tl.constexpr = 8
    SIZE_g: tl.constexpr = 4
    SIZE_e: tl.constexpr = 128
    BLOCK_e: tl.constexpr = 128
    SIZE_d: tl.constexpr = 128
    BLOCK_d: tl.constexpr = 128
    pid = tl.program_id(0)
    t_g = pid % 4
    pid = pid // 4
    t_h = pid % 8
    pid = pid // 8
    t_q = pid
    t_q = 63 - t_q  # the longest loops first
    i_q = t_q * BLOCK_q + tl.arange(0, BLOCK_q)
    i_h = t_h
    i_g = t_g
    i_e = tl.arange(0, BLOCK_e)
    i_d = tl.arange(0, BLOCK_d)
    fetch(Q_ptr + i_q[:, None] * 4096 + i_h * 512 + i_g * 128 + (0 + tl.arange(0, 2) * 64)[None, :], read=False)  # [q, d]
    wait_for_data()
    Q = tl.load(Q_ptr + i_q[:, None] * 4096 + i_h * 512 + i_g * 128 + i_d[None, :])  # [q, d]
    t2 = i_q  # [q]
    t6 = tl.full([BLOCK_q], float("-inf"), tl.float32)
    t9 = tl.zeros([BLOCK_q], tl.float32)
    v0 = tl.zeros([BLOCK_q, BLOCK_e], tl.float32)
    end_s = min(SIZE_s, t_q * 64 + 63 + 1)  # outside these bounds, t4 would make all that is added up zero
    rest_s = max(0, min(end_s, (t_q * 64 + 1) // 64 * 64))  # up to here they hold for whole tiles
    for s_s in range(0, bound(rest_s), 64):
        i_s = s_s + tl.arange(0, BLOCK_s)
        K = tl.permute(tl.reshape(K_desc.load([t_h, s_s, 0]), [BLOCK_s, BLOCK_d]), (1, 0))  # [d, s]
        V = tl.reshape(V_desc.load([t_h, s_s, 0]), [BLOCK_s, BLOCK_e])  # [s, e]
        t0 = tl.dot(Q, K)  # [q, s]
        A = t0  # [q, s]
        t5 = A  # [q, s]
        t6_next = tl.maximum(t6, tl.max(t5, axis=1))  # running maximum
        t6_shift = tl.where(tl.abs(t6_next) == float("inf"), 0.0, t6_next)
        t6_scale = tl.exp2((t6 - t6_shift) * 0.12751743082459868)
        t6_shift = t6_shift * 0.12751743082459868
        t6 = t6_next
        t8 = tl.exp2(t5 * 0.12751743082459868 - t6_shift[:, None])  # [q, s]
        t9 = t9 * t6_scale
        t9 += tl.sum(t8, axis=1)  # [q]
        v0 = v0 * t6_scale[:, None]
        v0 = tl.dot(t8.to(tl.float16), V, v0)  # [q, e]
    for s_s in range(bound(rest_s), hidden_bound(end_s), 64):
        i_s = s_s + tl.arange(0, BLOCK_s)
        K = tl.permute(tl.reshape(K_desc.load([t_h, s_s, 0]), [BLOCK_s, BLOCK_d]), (1, 0))  # [d, s]
        V = tl.reshape(V_desc.load([t_h, s_s, 0]), [BLOCK_s, BLOCK_e])  # [s, e]
        t3 = i_s  # [s]
        t4 = (t2[:, None] >= t3[None, :])  # [q, s]
        t0 = tl.dot(Q, K)  # [q, s]
        A = t0  # [q, s]
        t5 = tl.where(t4, A, float("-inf"))  # [q, s]
        t6_next = tl.maximum(t6, tl.max(t5, axis=1))  # running maximum
        t6_shift = tl.where(tl.abs(t6_next) == float("inf"), 0.0, t6_next)
        t6_scale = tl.exp2((t6 - t6_shift) * 0.12751743082459868)
        t6_shift = t6_shift * 0.12751743082459868
        t6 = t6_next
        t8 = tl.exp2(t5 * 0.12751743082459868 - t6_shift[:, None])  # [q, s]
        t9 = t9 * t6_scale
        t9 += tl.sum(t8, axis=1)  # [q]
        v0 = v0 * t6_scale[:, None]
        v0 = tl.dot(t8.to(tl.float16), V, v0)  # [q, e]
    release_next()
    O = (v0 / t9[:, None])  # [q, e]
    tl.store(O_ptr + i_q[:, None] * 4096 + i_h * 512 + i_g * 128 + i_e[None, :], O.to(tl.float16))
