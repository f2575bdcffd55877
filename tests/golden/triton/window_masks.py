# mugraph window float32
# dims q=4096 s=4096
# input A f32[q, s]
# output O f32[q]
#
# kernel k0 generated q:grid s:loop  # grid (q), for-loop over s
#   A = load A[q, s]                 # imap {x→q} fmap {i→s}
#   iq[q] = index(q)                 # before the loop
#   is[s] = index(s)                 # loop over s
#   D[q, s] = sub(iq, is)            # loop over s
#   C[q, s] = lt(D, 1024)            # loop over s
#   B[q, s] = where(C, A, 0)         # loop over s
#   O[q] = sum(B; s)                 # loop over s: accumulator
#   store O[q] = O                   # omap {x→q}
# schedule
# k0: q=16 s=64 order=q,s warps=4 stages=2


# k0: 256 programs, num_warps=4, num_stages=2, enable_fp_fusion=False, of A, O
@triton.jit
def k0(A_ptr, O_ptr):
    SIZE_q: tl.constexpr = 4096
    BLOCK_q: tl.constexpr = 16
    SIZE_s: tl.constexpr = 4096
    BLOCK_s: tl.constexpr = 64
    pid = tl.program_id(0)
    t_q = pid
    i_q = t_q * BLOCK_q + tl.arange(0, BLOCK_q)
    iq = i_q  # [q]
    O = tl.zeros([BLOCK_q, BLOCK_s], tl.float32)
    begin_s = max(0, (-1023 + t_q * 16) // 64 * 64)
    end_s = SIZE_s  # outside these bounds, C would make all that is added up zero
    whole_s = min(max(begin_s, (-1023 + t_q * 16 + 15 + 63) // 64 * 64), end_s)  # from here on they hold for whole tiles
    for s_s in range(bound(begin_s), bound(whole_s), 64):
        i_s = s_s + tl.arange(0, BLOCK_s)
        A = tl.load(A_ptr + i_q[:, None] * 4096 + i_s[None, :])  # [q, s]
        v_is_ = i_s  # [s]
        D = (iq[:, None] - v_is_[None, :])  # [q, s]
        C = (D < 1024)  # [q, s]
        B = tl.where(C, A, 0.0)  # [q, s]
        O += B  # [q, s]
    for s_s in range(bound(whole_s), bound(end_s), 64):
        i_s = s_s + tl.arange(0, BLOCK_s)
        A = tl.load(A_ptr + i_q[:, None] * 4096 + i_s[None, :])  # [q, s]
        B = A  # [q, s]
        O += B  # [q, s]
    O = tl.sum(O, axis=1)
    tl.store(O_ptr + i_q, O.to(tl.float32))
