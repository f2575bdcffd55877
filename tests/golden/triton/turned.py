# mugraph turned bfloat16
# dims m=500 h=4 i=24 d=64
# input X bf16[m, h, d]
# input C bf16[m, i]
# input S bf16[m, i]
# output O bf16[m, h, d]
#
# kernel k0 generated m:grid h:grid i:grid  # grid (m, h, i)
#   A = load X[m, h, i*2]                   # imap {x→m, y→h, z→i}
#   B = load X[m, h, i*2 + 1]               # imap {x→m, y→h, z→i}
#   C = load C[m, i]                        # imap {x→m, y→φ, z→i}
#   S = load S[m, i]                        # imap {x→m, y→φ, z→i}
#   P[m, h, i] = mul(A, C)
#   Q[m, h, i] = mul(B, S)
#   Y[m, h, i] = sub(P, Q)
#   R[m, h, i] = mul(B, C)
#   T[m, h, i] = mul(A, S)
#   Z[m, h, i] = add(R, T)
#   store O[m, h, i*2] = Y                  # omap {x→m, y→h, z→i}
#   store O[m, h, i*2 + 1] = Z              # omap {x→m, y→h, z→i}
# schedule
# k0: m=8 h=2 i=16 order=m,h,i warps=4 stages=2


# k0: 252 programs, num_warps=4, num_stages=2, of X, C, S, O
@triton.jit
def k0(X_ptr, C_ptr, S_ptr, O_ptr):
    SIZE_m: tl.constexpr = 500
    BLOCK_m: tl.constexpr = 8
    SIZE_h: tl.constexpr = 4
    BLOCK_h: tl.constexpr = 2
    SIZE_i: tl.constexpr = 24
    BLOCK_i: tl.constexpr = 16
    pid = tl.program_id(0)
    t_i = pid % 2
    pid = pid // 2
    t_h = pid % 2
    pid = pid // 2
    t_m = pid
    i_m = t_m * BLOCK_m + tl.arange(0, BLOCK_m)
    in_m = i_m < SIZE_m
    i_h = t_h * BLOCK_h + tl.arange(0, BLOCK_h)
    i_i = t_i * BLOCK_i + tl.arange(0, BLOCK_i)
    in_i = i_i < SIZE_i
    A, B = tl.split(tl.reshape(tl.load(X_ptr + i_m[:, None, None] * 256 + i_h[None, :, None] * 64 + (t_i * BLOCK_i * 2 + tl.arange(0, BLOCK_i * 2))[None, None, :], mask=(in_m[:, None, None]) & ((t_i * BLOCK_i * 2 + tl.arange(0, BLOCK_i * 2))[None, None, :] < SIZE_i * 2), other=0), [BLOCK_m, BLOCK_h, BLOCK_i, 2]))  # [m, h, i]
    C = tl.load(C_ptr + i_m[:, None] * 24 + i_i[None, :], mask=(in_m[:, None]) & (in_i[None, :]), other=0)  # [m, i]
    S = tl.load(S_ptr + i_m[:, None] * 24 + i_i[None, :], mask=(in_m[:, None]) & (in_i[None, :]), other=0)  # [m, i]
    P = (A.to(tl.float32) * C.to(tl.float32)[:, None, :])  # [m, h, i]
    Q = (B.to(tl.float32) * S.to(tl.float32)[:, None, :])  # [m, h, i]
    Y = (P - Q)  # [m, h, i]
    R = (B.to(tl.float32) * C.to(tl.float32)[:, None, :])  # [m, h, i]
    T = (A.to(tl.float32) * S.to(tl.float32)[:, None, :])  # [m, h, i]
    Z = (R + T)  # [m, h, i]
    tl.store(O_ptr + i_m[:, None, None] * 256 + i_h[None, :, None] * 64 + (t_i * BLOCK_i * 2 + tl.arange(0, BLOCK_i * 2))[None, None, :], tl.reshape(tl.join(to_bfloat16(Y), to_bfloat16(Z)), [BLOCK_m, BLOCK_h, BLOCK_i * 2]), mask=(in_m[:, None, None]) & ((t_i * BLOCK_i * 2 + tl.arange(0, BLOCK_i * 2))[None, None, :] < SIZE_i * 2))
