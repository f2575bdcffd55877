# mugraph causal_attention float16
# dims h=2 q=4096 s=4096 d=64 e=32
# input Q f16[h, q, d]
# input K f16[h, d, s]
# input V f16[h, s, e]
# output O f16[h, q, e]
#
# kernel k0 generated h:grid q:grid e:tile d:tile s:loop  # grid (h, q), for-loop over s
#   Q = load Q[h, q, d]                                   # imap {x→h, y→q}
#   K = load K[h, d, s]                                   # imap {x→h, y→φ} fmap {i→s}
#   V = load V[h, s, e]                                   # imap {x→h, y→φ} fmap {i→s}
#   A[h, q, s] = dot(Q, K; d)                             # loop over s
#   iq[q] = index(q)                                      # before the loop
#   is[s] = index(s)                                      # loop over s
#   C[q, s] = ge(iq, is)                                  # loop over s
#   B[h, q, s] = where(C, A, -inf)                        # loop over s
#   M[h, q] = max(B; s)                                   # loop over s: running maximum
#   E[h, q, s] = exp_sub(B, M)                            # loop over s
#   L[h, q] = sum(E; s)                                   # loop over s: accumulator, rescaled by exp(ΔM)^1
#   U[h, q, e] = dot(E, V; s)                             # loop over s: accumulator, rescaled by exp(ΔM)^1
#   O[h, q, e] = div(U, L)                                # epilogue
#   store O[h, q, e] = O                                  # omap {x→h, y→q}
# schedule
# k0: h=1 q=64 s=64 order=h,q,s,d,e warps=4 stages=3


# k0: 128 programs, num_warps=4, num_stages=3, of Q, K, V, O
@triton.jit
def k0(Q_ptr, K_ptr, V_ptr, O_ptr):
    SIZE_h: tl.constexpr = 2
    SIZE_q: tl.constexpr = 4096
    BLOCK_q: tl.constexpr = 64
    SIZE_s: tl.constexpr = 4096
    BLOCK_s: tl.constexpr = 64
    SIZE_e: tl.constexpr = 32
    BLOCK_e: tl.constexpr = 32
    SIZE_d: tl.constexpr = 64
    BLOCK_d: tl.constexpr = 64
    pid = tl.program_id(0)
    t_h = pid % 2
    pid = pid // 2
    t_q = pid
    t_q = 63 - t_q  # the longest loops first
    i_h = t_h
    i_q = t_q * BLOCK_q + tl.arange(0, BLOCK_q)
    i_e = tl.arange(0, BLOCK_e)
    i_d = tl.arange(0, BLOCK_d)
    Q = tl.load(Q_ptr + i_h * 262144 + i_q[:, None] * 64 + i_d[None, :])  # [q, d]
    iq = i_q  # [q]
    M = tl.full([BLOCK_q], float("-inf"), tl.float32)
    L = tl.zeros([BLOCK_q], tl.float32)
    U = tl.zeros([BLOCK_q, BLOCK_e], tl.float32)
    end_s = min(SIZE_s, t_q * 64 + 63 + 1)  # outside these bounds, C would make all that is added up zero
    rest_s = max(0, min(end_s, (t_q * 64 + 1) // 64 * 64))  # up to here they hold for whole tiles
    for s_s in range(0, bound(rest_s), 64):
        i_s = s_s + tl.arange(0, BLOCK_s)
        K = tl.load(K_ptr + i_h * 262144 + i_d[None, :] * 4096 + i_s[:, None])  # [s, d]
        V = tl.load(V_ptr + i_h * 131072 + i_s[:, None] * 32 + i_e[None, :])  # [s, e]
        A = tl.dot(Q, tl.permute(K, (1, 0)))  # [q, s]
        B = A  # [q, s]
        M_next = tl.maximum(M, tl.max(B, axis=1))  # running maximum
        M_shift = tl.where(tl.abs(M_next) == float("inf"), 0.0, M_next)
        M_scale = tl.exp2((M - M_shift) * 1.4426950408889634)
        M_shift = M_shift * 1.4426950408889634
        M = M_next
        E = tl.exp2(B * 1.4426950408889634 - M_shift[:, None])  # [q, s]
        L = L * M_scale
        L += tl.sum(E, axis=1)  # [q]
        U = U * M_scale[:, None]
        U = tl.dot(E.to(tl.float16), V, U)  # [q, e]
    for s_s in range(bound(rest_s), hidden_bound(end_s), 64):
        i_s = s_s + tl.arange(0, BLOCK_s)
        K = tl.load(K_ptr + i_h * 262144 + i_d[None, :] * 4096 + i_s[:, None])  # [s, d]
        V = tl.load(V_ptr + i_h * 131072 + i_s[:, None] * 32 + i_e[None, :])  # [s, e]
        A = tl.dot(Q, tl.permute(K, (1, 0)))  # [q, s]
        v_is_ = i_s  # [s]
        C = (iq[:, None] >= v_is_[None, :])  # [q, s]
        B = tl.where(C, A, float("-inf"))  # [q, s]
        M_next = tl.maximum(M, tl.max(B, axis=1))  # running maximum
        M_shift = tl.where(tl.abs(M_next) == float("inf"), 0.0, M_next)
        M_scale = tl.exp2((M - M_shift) * 1.4426950408889634)
        M_shift = M_shift * 1.4426950408889634
        M = M_next
        E = tl.exp2(B * 1.4426950408889634 - M_shift[:, None])  # [q, s]
        L = L * M_scale
        L += tl.sum(E, axis=1)  # [q]
        U = U * M_scale[:, None]
        U = tl.dot(E.to(tl.float16), V, U)  # [q, e]
    O = (U / L[:, None])  # [q, e]
    tl.store(O_ptr + i_h * 131072 + i_q[:, None] * 32 + i_e[None, :], O.to(tl.float16))
