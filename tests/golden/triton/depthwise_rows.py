# mugraph depthwise float16
# dims b=2 y=14 x=13 c=64 i=3 j=3
# input X f16[b, y, x, c]
# input W f16[i, j, c]
# output O f16[b, y, x, c]
#
# kernel k0 generated b:grid y:grid x:grid c:grid i:tile j:loop  # grid (b, y, x, c), for-loop over j
#   X = load X[b, i + y - 1, j + x - 1, c]                       # imap {x→b, y→y, z→x, u→c} fmap {i→j}
#   W = load W[i, j, c]                                          # imap {x→φ, y→φ, z→φ, u→c} fmap {i→j}
#   S[b, y, x, c] = dot(X, W; i, j)                              # loop over j: accumulator
#   O[b, y, x, c] = silu(S)                                      # epilogue
#   store O[b, y, x, c] = O                                      # omap {x→b, y→y, z→x, u→c}
# schedule
# k0: b=1 y=2 x=4 c=64 j=1 order=b,y,x,c,j,i warps=1 stages=3 overlap unroll


# k0: 56 programs, num_warps=1, num_stages=3, launch_pdl=can_overlap(), of X, W, O
@triton.jit
def k0(X_ptr, W_ptr, O_ptr):
    SIZE_b: tl.constexpr = 2
    SIZE_y_rows: tl.constexpr = 7
    SIZE_x: tl.constexpr = 13
    BLOCK_x: tl.constexpr = 4
    SIZE_c: tl.constexpr = 64
    BLOCK_c: tl.constexpr = 64
    SIZE_j: tl.constexpr = 3
    pid = tl.program_id(0)
    t_x = pid % 4
    pid = pid // 4
    t_y_rows = pid % 7
    pid = pid // 7
    t_b = pid
    i_b = t_b
    i_y_rows = t_y_rows
    i_x = t_x * BLOCK_x + tl.arange(0, BLOCK_x)
    in_x = i_x < SIZE_x
    i_c = tl.arange(0, BLOCK_c)
    wait_for_data()
    S_12 = tl.zeros([BLOCK_x, BLOCK_c], tl.float32)
    S_19 = tl.zeros([BLOCK_x, BLOCK_c], tl.float32)
    for s_j in range(0, SIZE_j, 1):
        i_j = s_j
        X_0 = tl.load(X_ptr + i_b * 11648 + i_y_rows * 1664 + i_j * 64 + i_x[:, None] * 64 + i_c[None, :] + -896, mask=in_x[:, None] & (i_y_rows * 2 + -1 >= 0) & (i_j + i_x[:, None] + -1 >= 0) & (i_j + i_x[:, None] + -1 < 13), other=0)  # [x, c]
        X_1 = tl.load(X_ptr + i_b * 11648 + i_y_rows * 1664 + i_j * 64 + i_x[:, None] * 64 + i_c[None, :] + -64, mask=in_x[:, None] & (i_j + i_x[:, None] + -1 >= 0) & (i_j + i_x[:, None] + -1 < 13), other=0)  # [x, c]
        X_2 = tl.load(X_ptr + i_b * 11648 + i_y_rows * 1664 + i_j * 64 + i_x[:, None] * 64 + i_c[None, :] + 768, mask=in_x[:, None] & (i_j + i_x[:, None] + -1 >= 0) & (i_j + i_x[:, None] + -1 < 13), other=0)  # [x, c]
        X_3 = tl.load(X_ptr + i_b * 11648 + i_y_rows * 1664 + i_j * 64 + i_x[:, None] * 64 + i_c[None, :] + 1600, mask=in_x[:, None] & (i_y_rows * 2 + 2 < 14) & (i_j + i_x[:, None] + -1 >= 0) & (i_j + i_x[:, None] + -1 < 13), other=0)  # [x, c]
        W_4 = tl.load(W_ptr + i_j * 64 + i_c)  # [c]
        W_5 = tl.load(W_ptr + i_j * 64 + i_c + 192)  # [c]
        W_6 = tl.load(W_ptr + i_j * 64 + i_c + 384)  # [c]
        S_7 = (X_0.to(tl.float32) * W_4.to(tl.float32)[None, :])  # [x, c]
        S_8 = (X_1.to(tl.float32) * W_5.to(tl.float32)[None, :])  # [x, c]
        S_9 = (S_7 + S_8)  # [x, c]
        S_10 = (X_2.to(tl.float32) * W_6.to(tl.float32)[None, :])  # [x, c]
        S_11 = (S_9 + S_10)  # [x, c]
        S_12 += S_11  # [x, c]
        S_14 = (X_1.to(tl.float32) * W_4.to(tl.float32)[None, :])  # [x, c]
        S_15 = (X_2.to(tl.float32) * W_5.to(tl.float32)[None, :])  # [x, c]
        S_16 = (S_14 + S_15)  # [x, c]
        S_17 = (X_3.to(tl.float32) * W_6.to(tl.float32)[None, :])  # [x, c]
        S_18 = (S_16 + S_17)  # [x, c]
        S_19 += S_18  # [x, c]
    release_next()
    O_13 = (S_12 * tl.sigmoid(S_12))  # [x, c]
    O_20 = (S_19 * tl.sigmoid(S_19))  # [x, c]
    tl.store(O_ptr + i_b * 11648 + i_y_rows * 1664 + i_x[:, None] * 64 + i_c[None, :], O_13.to(tl.float16), mask=in_x[:, None])
    tl.store(O_ptr + i_b * 11648 + i_y_rows * 1664 + i_x[:, None] * 64 + i_c[None, :] + 832, O_20.to(tl.float16), mask=in_x[:, None])
