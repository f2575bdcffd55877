# mugraph conv_block float16
# dims b=2 y=32 x=32 c=64 e=64 i=3 j=3
# input X f16[b, y, x, c]
# input W f16[i, j, c, e]
# input B f16[e]
# input R f16[b, y, x, e]
# output O f16[b, y, x, e]
#
# kernel k0 generated b:grid y:grid x:grid c:loop e:grid i:loop j:loop  # grid (b, y, x, e), for-loop over c, i, j
#   W = load W[i, j, c, e]                                              # imap {x→φ, y→φ, z→φ, u→e} fmap {i→c, i→i, i→j}
#   X = load X[b, i + y - 1, j + x - 1, c]                              # imap {x→b, y→y, z→x, u→φ} fmap {i→c, i→i, i→j}
#   R = load R[b, y, x, e]                                              # imap {x→b, y→y, z→x, u→e}
#   B = load B[e]                                                       # imap {x→φ, y→φ, z→φ, u→e}
#   t1[b, y, x, e] = dot(X, W; c, i, j)                                 # loop over c, i, j: accumulator
#   t2[b, y, x, e] = add(t1, B)                                         # epilogue
#   t3[b, y, x, e] = silu(t2)                                           # epilogue
#   O[b, y, x, e] = add(t3, R)                                          # epilogue
#   store O[b, y, x, e] = O                                             # omap {x→b, y→y, z→x, u→e}
# schedule
# k0: b=1 y=4 x=16 c=64 e=32 i=1 j=1 order=b,y,x,c,i,j,e warps=4 stages=3 overlap


# k0: 64 programs, num_warps=4, num_stages=3, launch_pdl=can_overlap(), of W, X, R, B, O
@triton.jit
def k0(W_ptr, X_ptr, R_ptr, B_ptr, O_ptr):
    SIZE_b: tl.constexpr = 2
    SIZE_y: tl.constexpr = 32
    BLOCK_y: tl.constexpr = 4
    SIZE_x: tl.constexpr = 32
    BLOCK_x: tl.constexpr = 16
    SIZE_c: tl.constexpr = 64
    BLOCK_c: tl.constexpr = 64
    SIZE_e: tl.constexpr = 64
    BLOCK_e: tl.constexpr = 32
    SIZE_i: tl.constexpr = 3
    SIZE_j: tl.constexpr = 3
    pid = tl.program_id(0)
    t_e = pid % 2
    pid = pid // 2
    t_x = pid % 2
    pid = pid // 2
    t_y = pid % 8
    pid = pid // 8
    t_b = pid
    i_b = t_b
    i_y = t_y * BLOCK_y + tl.arange(0, BLOCK_y)
    i_x = t_x * BLOCK_x + tl.arange(0, BLOCK_x)
    i_e = t_e * BLOCK_e + tl.arange(0, BLOCK_e)
    wait_for_data()
    R = tl.load(R_ptr + i_b * 65536 + i_y[:, None, None] * 2048 + i_x[None, :, None] * 64 + i_e[None, None, :])  # [y, x, e]
    t1 = tl.zeros([BLOCK_y * BLOCK_x, BLOCK_e], tl.float32)
    for step in range(0, 9):  # tiles of c, i, j together
        i_c = (step // 9) * 64 + tl.arange(0, BLOCK_c)
        i_i = (step // 3 % 3) * 1
        i_j = (step // 1 % 3) * 1
        W = tl.load(W_ptr + i_i * 12288 + i_j * 4096 + i_c[:, None] * 64 + i_e[None, :])  # [c, e]
        X = tl.load(X_ptr + i_b * 65536 + i_i * 2048 + i_y[:, None, None] * 2048 + i_j * 64 + i_x[None, :, None] * 64 + i_c[None, None, :] + -2112, mask=(i_i + i_y[:, None, None] + -1 >= 0) & (i_i + i_y[:, None, None] + -1 < 32) & (i_j + i_x[None, :, None] + -1 >= 0) & (i_j + i_x[None, :, None] + -1 < 32), other=0)  # [y, x, c]
        t1 = ended(tl.dot(tl.reshape(X, [BLOCK_y * BLOCK_x, BLOCK_c]), W, t1))  # [y*x, e]
    t1 = tl.reshape(t1, [BLOCK_y, BLOCK_x, BLOCK_e])
    release_next()
    B = tl.load(B_ptr + i_e)  # [e]
    t2 = (t1 + B.to(tl.float32)[None, None, :])  # [y, x, e]
    t3 = (t2 * tl.sigmoid(t2))  # [y, x, e]
    O = (t3 + R.to(tl.float32))  # [y, x, e]
    tl.store(O_ptr + i_b * 65536 + i_y[:, None, None] * 2048 + i_x[None, :, None] * 64 + i_e[None, None, :], O.to(tl.float16))
