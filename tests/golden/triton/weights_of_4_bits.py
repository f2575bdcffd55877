# mugraph int4_linear float16
# dims m=16 k=4096 half=2048 n=14336 groups=32
# input X f16[m, k]
# input W i8[half, n]
# input S f16[groups, n]
# input Z i8[groups, n] below 16
# output O f16[m, n]
# buffer O_part f32[k_split, m, n]
#
# kernel k0 generated m:grid k:split n:grid  # grid (m, n, k_split), for-loop over k
#   Z = load Z[k//128, n]                    # imap {x→φ, y→n, z→k} fmap {i→k}
#   W = load W[k//2, n]                      # imap {x→φ, y→n, z→k} fmap {i→k}
#   S = load S[k//128, n]                    # imap {x→φ, y→n, z→k} fmap {i→k}
#   X = load X[m, k]                         # imap {x→m, y→φ, z→k} fmap {i→k}
#   t1[k] = index(k)                         # loop over k
#   t2[k] = remainder(t1, 2)                 # loop over k
#   t3[k] = eq(t2, 0)                        # loop over k
#   t4[k, n] = remainder(W, 16)              # loop over k
#   t5[k, n] = floor_divide(W, 16)           # loop over k
#   t6[k, n] = add(t5, 8)                    # loop over k
#   Q[k, n] = where(t3, t4, t6)              # loop over k
#   t9[k, n] = sub(Q, Z)                     # loop over k
#   t11[k, n] = mul(t9, S)                   # loop over k
#   O[m, n] = dot(X, t11; k)                 # loop over k: accumulator
#   store O_part[k_split, m, n] = O          # omap {x→m, y→n, z→k_split}
#
# kernel k1 generated k_split:tile m:grid n:grid  # grid (m, n)
#   O_part = load O_part[k_split, m, n]           # imap {x→m, y→n}
#   O[m, n] = sum(O_part; k_split)
#   store O[m, n] = O                             # omap {x→m, y→n}
# schedule
# k0: m=16 k=128 n=128 order=n,k,m warps=4 stages=4 split=4 overlap
# k1: m=1 n=256 order=k_split,m,n warps=1 stages=2 overlap


# k0: 448 programs, num_warps=4, num_stages=4, launch_pdl=can_overlap(), of Z, W, S, X, O_part
@triton.jit
def k0(Z_ptr, W_ptr, S_ptr, X_ptr, O_part_ptr):
    SIZE_m: tl.constexpr = 16
    BLOCK_m: tl.constexpr = 16
    SIZE_k: tl.constexpr = 2048
    BLOCK_k: tl.constexpr = 64
    SIZE_n: tl.constexpr = 14336
    BLOCK_n: tl.constexpr = 128
    pid = tl.program_id(0)
    chunk = pid // 112
    pid = pid % 112
    t_n = pid
    i_m = tl.arange(0, BLOCK_m)
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    wait_for_data()
    O = tl.zeros([BLOCK_n, BLOCK_m], tl.float32)
    for s_k in tl.range(bound(chunk * 512), bound(chunk * 512 + 512), 64, num_stages=4):
        i_k = s_k + tl.arange(0, BLOCK_k)
        Z = (tl.load(Z_ptr.to(tl.pointer_type(tl.int32)) + ((s_k) // 64) * 3584 + (i_n // 4)) >> (tl.arange(0, BLOCK_n) % 4 * 8)).to(tl.int8)  # [n]
        W = tl.load(W_ptr.to(tl.pointer_type(tl.int16)) + i_k[None, :] * 7168 + (t_n * (BLOCK_n // 2) + tl.arange(0, BLOCK_n // 2))[:, None])  # [n/2, k]
        S = (tl.load(S_ptr.to(tl.pointer_type(tl.int32)) + ((s_k) // 64) * 7168 + (i_n // 2)) >> (tl.arange(0, BLOCK_n) % 2 * 16)).to(tl.int16).to(tl.float16, bitcast=True)  # [n]
        X, X_1 = tl.split(tl.permute(tl.reshape(tl.load(X_ptr + i_m[None, :] * 4096 + (s_k * 2 + tl.arange(0, BLOCK_k * 2))[:, None]), [BLOCK_k, 2, BLOCK_m]), (0, 2, 1)))  # [k, m]
        O_sum = tl.reshape(tl.permute(tl.join(tl.dot(pair_bits(W, 4, 15, 8, every_second((1024.0 + Z.to(tl.float16)), False)[:, None]), X_1, tl.dot(pair_bits(W, 0, 15, 0, every_second((1024.0 + Z.to(tl.float16)), False)[:, None]), X)), tl.dot(pair_bits(W, 12, 15, 8, every_second((1024.0 + Z.to(tl.float16)), True)[:, None]), X_1, tl.dot(pair_bits(W, 8, 15, 0, every_second((1024.0 + Z.to(tl.float16)), True)[:, None]), X))), (0, 2, 1)), [BLOCK_n, BLOCK_m])  # [n, m]
        O = O + (O_sum * S.to(tl.float32)[:, None])  # [n, m]
    release_next()
    tl.store(O_part_ptr + chunk * 229376 + i_m[None, :] * 14336 + i_n[:, None], O.to(tl.float32))


# k1: 896 programs, num_warps=1, num_stages=2, launch_pdl=can_overlap(), of O_part, O
@triton.jit
def k1(O_part_ptr, O_ptr):
    SIZE_m: tl.constexpr = 16
    SIZE_n: tl.constexpr = 14336
    BLOCK_n: tl.constexpr = 256
    SIZE_k_split: tl.constexpr = 4
    BLOCK_k_split: tl.constexpr = 4
    pid = tl.program_id(0)
    t_n = pid % 56
    pid = pid // 56
    t_m = pid
    i_m = t_m
    i_n = t_n * BLOCK_n + tl.arange(0, BLOCK_n)
    i_k_split = tl.arange(0, BLOCK_k_split)
    wait_for_data()
    release_next()
    O_part = tl.load(O_part_ptr + i_k_split[:, None] * 229376 + i_m * 14336 + i_n[None, :])  # [k_split, n]
    O = tl.sum(O_part, axis=0)  # [n]
    tl.store(O_ptr + i_m * 14336 + i_n, O.to(tl.float16))
