# mugraph grouped float16
# dims b=16 y=14 x=13 g=32 k=16 n=16 i=3 j=3
# input X f16[b, y, x, g, k]
# input W f16[g, i, j, k, n]
# input B f16[g, n]
# output O f16[b, y, x, g, n]
#
# kernel k0 generated b:grid y:grid x:grid g:grid k:tile n:grid i:loop j:loop  # grid (b, y, x, g, n), for-loop over i, j
#   X = load X[b, i + y - 1, j + x - 1, g, k]                                  # imap {x→b, y→y, z→x, u→g, v→φ} fmap {i→i, i→j}
#   W = load W[g, i, j, k, n]                                                  # imap {x→φ, y→φ, z→φ, u→g, v→n} fmap {i→i, i→j}
#   B = load B[g, n]                                                           # imap {x→φ, y→φ, z→φ, u→g, v→n}
#   S[b, y, x, g, n] = dot(X, W; i, j, k)                                      # loop over i, j: accumulator
#   T[b, y, x, g, n] = add(S, B)                                               # epilogue
#   O[b, y, x, g, n] = relu(T)                                                 # epilogue
#   store O[b, y, x, g, n] = O                                                 # omap {x→b, y→y, z→x, u→g, v→n}
# schedule
# k0: b=1 y=8 x=16 g=4 n=16 i=1 j=1 order=b,y,x,g,k,n,i,j warps=4 stages=3 overlap


# k0: 256 programs, num_warps=4, num_stages=3, launch_pdl=can_overlap(), of X, W, B, O
@triton.jit
def k0(X_ptr, W_ptr, B_ptr, O_ptr):
    SIZE_b: tl.constexpr = 16
    SIZE_y: tl.constexpr = 14
    BLOCK_y: tl.constexpr = 8
    SIZE_x: tl.constexpr = 13
    BLOCK_x: tl.constexpr = 16
    SIZE_g_0: tl.constexpr = 8
    SIZE_n: tl.constexpr = 16
    BLOCK_n: tl.constexpr = 16
    SIZE_i: tl.constexpr = 3
    SIZE_j: tl.constexpr = 3
    SIZE_g_1: tl.constexpr = 4
    BLOCK_g_1: tl.constexpr = 4
    SIZE_g_2: tl.constexpr = 4
    BLOCK_g_2: tl.constexpr = 4
    SIZE_k: tl.constexpr = 16
    BLOCK_k: tl.constexpr = 16
    pid = tl.program_id(0)
    t_g_0 = pid % 8
    pid = pid // 8
    t_y = pid % 2
    pid = pid // 2
    t_b = pid
    i_b = t_b
    i_y = t_y * BLOCK_y + tl.arange(0, BLOCK_y)
    in_y = i_y < SIZE_y
    i_x = tl.arange(0, BLOCK_x)
    in_x = i_x < SIZE_x
    i_g_0 = t_g_0
    i_n = tl.arange(0, BLOCK_n)
    i_g_1 = tl.arange(0, BLOCK_g_1)
    i_g_2 = tl.arange(0, BLOCK_g_2)
    i_k = tl.arange(0, BLOCK_k)
    wait_for_data()
    B = tl.load(B_ptr + i_g_0 * 64 + i_g_1[:, None] * 16 + i_n[None, :])  # [g_1, n]
    S = tl.zeros([BLOCK_y * BLOCK_x, BLOCK_g_1 * BLOCK_n], tl.float32)
    for step in range(0, 9):  # tiles of i, j together
        i_i = (step // 3) * 1
        i_j = (step // 1 % 3) * 1
        X = tl.load(X_ptr + i_b * 93184 + i_i * 6656 + i_y[:, None, None] * 6656 + i_j * 512 + i_x[None, :, None] * 512 + i_g_0 * 64 + (tl.arange(0, BLOCK_g_2 * BLOCK_k) // BLOCK_k)[None, None, :] * 16 + (tl.arange(0, BLOCK_g_2 * BLOCK_k) % BLOCK_k)[None, None, :] + -7168, mask=(in_y[:, None, None]) & (in_x[None, :, None]) & (i_i + i_y[:, None, None] + -1 >= 0) & (i_i + i_y[:, None, None] + -1 < 14) & (i_j + i_x[None, :, None] + -1 >= 0) & (i_j + i_x[None, :, None] + -1 < 13), other=0)  # [y, x, g_2*k]
        W = tl.load(W_ptr + (tl.arange(0, BLOCK_g_2 * BLOCK_k) // BLOCK_k)[:, None] * 73728 + (tl.arange(0, BLOCK_g_1 * BLOCK_n) // BLOCK_n)[None, :] * -71424 + i_g_0 * 9216 + i_i * 768 + i_j * 256 + (tl.arange(0, BLOCK_g_2 * BLOCK_k) % BLOCK_k)[:, None] * 16 + (tl.arange(0, BLOCK_g_1 * BLOCK_n) % BLOCK_n)[None, :], mask=((tl.arange(0, BLOCK_g_2 * BLOCK_k) // BLOCK_k)[:, None] * 32 + (tl.arange(0, BLOCK_g_1 * BLOCK_n) // BLOCK_n)[None, :] * -31 + i_g_0 * 4 >= 0) & ((tl.arange(0, BLOCK_g_2 * BLOCK_k) // BLOCK_k)[:, None] * 32 + (tl.arange(0, BLOCK_g_1 * BLOCK_n) // BLOCK_n)[None, :] * -31 + i_g_0 * 4 < 32), other=0)  # [g_2*k, g_1*n]
        S = ended(tl.dot(tl.reshape(X, [BLOCK_y * BLOCK_x, BLOCK_g_2 * BLOCK_k]), W, S))  # [y*x, g_1*n]
    S = tl.reshape(S, [BLOCK_y, BLOCK_x, BLOCK_g_1, BLOCK_n])
    release_next()
    T = (S + B.to(tl.float32)[None, None, :, :])  # [y, x, g_1, n]
    O = tl.maximum(T, 0.0, propagate_nan=tl.PropagateNan.ALL)  # [y, x, g_1, n]
    tl.store(O_ptr + i_b * 93184 + i_y[:, None, None, None] * 6656 + i_x[None, :, None, None] * 512 + i_g_0 * 64 + i_g_1[None, None, :, None] * 16 + i_n[None, None, None, :], O.to(tl.float16), mask=(in_y[:, None, None, None]) & (in_x[None, :, None, None]))
