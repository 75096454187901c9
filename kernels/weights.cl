// Weights as model files hold them, eight values at a time. It is put after common.cl and before
// the matrix products. All formats are ggml's; numbers are little-endian.
//
// Build option: MZ_WEIGHTS, one of the formats below.
//
//     format      block                                          value
//     F32, F16    one number                                     the number
//     Q8_0        d: half, q: 32 signed bytes                    d q
//     Q4_0        d: half, q: 16 bytes                           d (q - 8)
//     Q4_1        d: half, m: half, q: 16 bytes                  d q + m
//
// The lower nibbles of the 16 bytes are values 0 to 15 of the block, the upper ones 16 to 31. Rows
// are whole blocks, and a multiple of 8 values; tensors start at multiples of 32 bytes.

#define WEIGHTS_F32 0
#define WEIGHTS_F16 1
#define WEIGHTS_Q8_0 2
#define WEIGHTS_Q4_0 3
#define WEIGHTS_Q4_1 4

#define half_at(from) vload_half(0, (const __global half *)(from))
// Blocks start at even addresses, so bytes are loaded in pairs.
#define bytes8_at(from) vload4(0, (const __global ushort *)(from))

// Bytes of a row of `values` values.
#if MZ_WEIGHTS == WEIGHTS_F32
#define ROW_BYTES(values) ((ulong)(values) * 4)
#elif MZ_WEIGHTS == WEIGHTS_F16
#define ROW_BYTES(values) ((ulong)(values) * 2)
#elif MZ_WEIGHTS == WEIGHTS_Q8_0
#define BLOCK_BYTES 34
#elif MZ_WEIGHTS == WEIGHTS_Q4_0
#define BLOCK_BYTES 18
#elif MZ_WEIGHTS == WEIGHTS_Q4_1
#define BLOCK_BYTES 20
#endif
#ifdef BLOCK_BYTES
#define ROW_BYTES(values) ((ulong)(values) / 32 * BLOCK_BYTES)
#endif

// Values 8 `piece` to 8 `piece` + 7 of a row.
INLINE float8 load_weights8(const __global uchar *row, uint piece)
{
#if MZ_WEIGHTS == WEIGHTS_F32
    return *(const __global float8 *)(row + piece * 32);
#elif MZ_WEIGHTS == WEIGHTS_F16
    return load_half8((const __global half *)row + piece * 8);
#else
    const __global uchar *block = row + piece / 4 * BLOCK_BYTES;
    const uint part = piece % 4;
    const float d = half_at(block);
#if MZ_WEIGHTS == WEIGHTS_Q8_0
    return convert_float8(as_char8(bytes8_at(block + 2 + part * 8))) * d;
#else
    const uchar8 both = as_uchar8(bytes8_at(block + BLOCK_BYTES - 16 + part % 2 * 8));
    const float8 q = convert_float8(part < 2 ? both & (uchar8)(15) : both >> (uchar8)(4));
#if MZ_WEIGHTS == WEIGHTS_Q4_0
    return (q - 8.0f) * d;
#else
    return mad(q, (float8)(d), (float8)(half_at(block + 2)));
#endif
#endif
#endif
}
