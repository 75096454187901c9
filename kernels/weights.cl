// Weights as model files hold them, eight values at a time. It is put after common.cl and before
// the matrix products. All formats are ggml's; numbers are little-endian.
//
// Build option: MZ_WEIGHTS, one of the formats below.
//
//     format      block                                              values
//     F32, F16    one number                                         the number
//     BF16        the upper half of a float                          the number
//     Q8_0        d: half, q: 32 signed bytes                        d q
//     Q4_0        d: half, q: 16 bytes                               d (q - 8)
//     Q4_1        d: half, m: half, q: 16 bytes                      d q + m
//     Q4_K        d, m: halves, s: 12 bytes, q: 128 bytes            d s q - m t
//     Q6_K        q: 128 bytes, r: 64 bytes, s: 16 bytes, d: half    d s (q + 16 r - 32)
//
// Q8_0, Q4_0 and Q4_1 have 32 values a block: the lower nibbles of the 16 bytes are values 0 to 15,
// the upper ones 16 to 31. The others have 256. Of Q4_K, 32 bytes are 64 values, the lower nibbles
// first; each 32 values have a scale s and a minimum t of 6 bits. Of Q6_K, 64 bytes of q and 32 of
// r are 128 values, in four runs of 32: lower nibbles, then upper ones, with the bits of r in
// pairs; each 16 values have a signed scale. Rows are whole blocks, and a multiple of 8 values;
// tensors start at multiples of 32 bytes.

#define WEIGHTS_F32 0
#define WEIGHTS_F16 1
#define WEIGHTS_Q8_0 2
#define WEIGHTS_Q4_0 3
#define WEIGHTS_Q4_1 4
#define WEIGHTS_BF16 5
#define WEIGHTS_Q4_K 6
#define WEIGHTS_Q6_K 7

#define half_at(from) vload_half(0, (const __global half *)(from))
// Blocks start at even addresses, so bytes are loaded in pairs.
#define bytes8_at(from) vload4(0, (const __global ushort *)(from))

#if MZ_WEIGHTS == WEIGHTS_F32
#define BLOCK_VALUES 1
#define BLOCK_BYTES 4
#elif MZ_WEIGHTS == WEIGHTS_F16 || MZ_WEIGHTS == WEIGHTS_BF16
#define BLOCK_VALUES 1
#define BLOCK_BYTES 2
#elif MZ_WEIGHTS == WEIGHTS_Q8_0
#define BLOCK_VALUES 32
#define BLOCK_BYTES 34
#elif MZ_WEIGHTS == WEIGHTS_Q4_0
#define BLOCK_VALUES 32
#define BLOCK_BYTES 18
#elif MZ_WEIGHTS == WEIGHTS_Q4_1
#define BLOCK_VALUES 32
#define BLOCK_BYTES 20
#elif MZ_WEIGHTS == WEIGHTS_Q4_K
#define BLOCK_VALUES 256
#define BLOCK_BYTES 144
#elif MZ_WEIGHTS == WEIGHTS_Q6_K
#define BLOCK_VALUES 256
#define BLOCK_BYTES 210
#endif
#define BLOCK_PIECES (BLOCK_VALUES / 8)

// Bytes of a row of `values` values.
#define ROW_BYTES(values) ((ulong)(values) / BLOCK_VALUES * BLOCK_BYTES)

#if MZ_WEIGHTS == WEIGHTS_F32
#define LOAD_WEIGHTS8(row, piece) (*(const __global float8 *)((row) + (piece) * 32))
#elif MZ_WEIGHTS == WEIGHTS_F16
#define LOAD_WEIGHTS8(row, piece) load_half8((const __global half *)(row) + (piece) * 8)
#elif MZ_WEIGHTS == WEIGHTS_BF16
INLINE float8 load_bfloat8(const __global uchar *from)
{
    const uint4 raw = *(const __global uint4 *)from;
    const uint4 low = raw << 16;
    const uint4 high = raw & 0xffff0000u;
    return as_float8((uint8)(low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w));
}

#define LOAD_WEIGHTS8(row, piece) load_bfloat8((row) + (piece) * 16)
#else
// Lower (0) or upper (1) nibbles of eight bytes.
INLINE float8 load_nibbles8(const __global uchar *from, uint upper)
{
    const uchar8 both = as_uchar8(bytes8_at(from));
    return convert_float8(upper ? both >> (uchar8)(4) : both & (uchar8)(15));
}

// Values 8 `part` to 8 `part` + 7 of a block.
INLINE float8 load_block8(const __global uchar *block, uint part)
{
#if MZ_WEIGHTS == WEIGHTS_Q8_0
    return convert_float8(as_char8(bytes8_at(block + 2 + part * 8))) * half_at(block);
#elif MZ_WEIGHTS == WEIGHTS_Q4_0
    return (load_nibbles8(block + 2 + part % 2 * 8, part / 2) - 8.0f) * half_at(block);
#elif MZ_WEIGHTS == WEIGHTS_Q4_1
    const float8 q = load_nibbles8(block + 4 + part % 2 * 8, part / 2);
    return mad(q, (float8)(half_at(block)), (float8)(half_at(block + 2)));
#elif MZ_WEIGHTS == WEIGHTS_Q4_K
    const uint run = part / 4;
    const __global uchar *bits = block + 4 + run % 4;
    // Runs 4 to 7 have their lower four bits in the last bytes, the upper two above those of runs
    // 0 to 3.
    const uint scale = run < 4 ? bits[0] & 63 : (bits[8] & 15) | (bits[0] >> 6 << 4);
    const uint minimum = run < 4 ? bits[4] & 63 : (bits[8] >> 4) | (bits[4] >> 6 << 4);
    const float8 q = load_nibbles8(block + 16 + run / 2 * 32 + part % 4 * 8, run % 2);
    const float d = half_at(block) * (float)scale;
    return mad(q, (float8)(d), (float8)(-half_at(block + 2) * (float)minimum));
#elif MZ_WEIGHTS == WEIGHTS_Q6_K
    const uint part_of_128 = part % 16;
    const uint run = part_of_128 / 4;
    const uint place = part % 4 * 8;
    const __global uchar *q = block + part / 16 * 64 + run % 2 * 32 + place;
    const uchar8 r = as_uchar8(bytes8_at(block + 128 + part / 16 * 32 + place));
    const float8 upper = convert_float8(r >> (uchar8)(2 * run) & (uchar8)(3));
    const char scale = ((const __global char *)block)[192 + part / 2];
    const float d = half_at(block + 208) * (float)scale;
    return (load_nibbles8(q, run / 2) + upper * 16.0f - 32.0f) * d;
#endif
}

#define LOAD_WEIGHTS8(row, piece) \
    load_block8((row) + (piece) / BLOCK_PIECES * BLOCK_BYTES, (piece) % BLOCK_PIECES)
#endif

// Values 8 `piece` to 8 `piece` + 7 of a row.
INLINE float8 load_weights8(const __global uchar *row, uint piece)
{
    return LOAD_WEIGHTS8(row, piece);
}
