# mugraph running float32
# dims m=3 t=67 j=67 i=67
# input X f32[m, t]
# output O f32[m, t]
# output P f32[m, t]
#
# kernel k0 generated m:grid t:tile j:tile i:tile  # grid (m)
#   X = load X[m, j]                               # imap {x→m}
#   X_1 = load X[m, i - 1]                         # imap {x→m}
#   j1[j] = index(j)
#   i1[i] = index(i)
#   t1[t] = index(t)
#   from[t, j] = ge(j1, t1)
#   upto[t, i] = le(i1, t1)
#   some[m, t, j] = where(from, X, -inf)
#   others[m, t, i] = where(upto, X_1, 0)
#   O[m, t] = max(some; j)
#   P[m, t] = sum(others; i)
#   store O[m, t] = O                              # omap {x→m}
#   store P[m, t] = P                              # omap {x→m}
# schedule
# k0: m=2 order=m,t,j,i warps=4 stages=3


# k0: 2 programs, num_warps=4, num_stages=3, enable_fp_fusion=False, of X, O, P
@triton.jit
def k0(X_ptr, O_ptr, P_ptr):
    SIZE_m: tl.constexpr = 3
    BLOCK_m: tl.constexpr = 2
    SIZE_t: tl.constexpr = 67
    BLOCK_t: tl.constexpr = 128
    SIZE_j: tl.constexpr = 67
    BLOCK_j: tl.constexpr = 128
    SIZE_i: tl.constexpr = 67
    BLOCK_i: tl.constexpr = 128
    pid = tl.program_id(0)
    t_m = pid
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    in_m = i_m < SIZE_m
    i_t = tl.arange(0, BLOCK_t)
    in_t = i_t < SIZE_t
    i_j = tl.arange(0, BLOCK_j)
    in_j = i_j < SIZE_j
    i_i = tl.arange(0, BLOCK_i)
    in_i = i_i < SIZE_i
    X = tl.load(X_ptr + i_m[:, None] * 67 + i_j[None, :], mask=(in_m[:, None]) & (in_j[None, :]), other=0)  # [m, j]
    X_1 = tl.load(X_ptr + i_m[:, None] * 67 + i_i[None, :] + -1, mask=(in_m[:, None]) & (in_i[None, :]) & (i_i[None, :] + -1 >= 0), other=0)  # [m, i]
    O = running_largest(tl.where(in_j[None, :], X, float("-inf")), 1, True)  # [m, t]
    P = tl.cumsum(X_1, axis=1, reverse=False)  # [m, t]
    tl.store(O_ptr + i_m[:, None] * 67 + i_t[None, :], O.to(tl.float32), mask=(in_m[:, None]) & (in_t[None, :]))
    tl.store(P_ptr + i_m[:, None] * 67 + i_t[None, :], P.to(tl.float32), mask=(in_m[:, None]) & (in_t[None, :]))
