// What every kernel shares: arithmetic, the chunk table, reductions. It is put before each kernel's
// source; nothing is included.
//
// Build options, each a -D:
//
//     MZ_HALF        K and queries are multiplied as half8 (cl_khr_fp16). Without it halves are
//                    widened when they are loaded and all arithmetic is float8.
//     MZ_POOL        Table entries are byte offsets into one buffer, which is then the last
//                    argument of each kernel that takes a table. Without it they are addresses.
//     MZ_SUBGROUP    Sums and maxima of a work-group go through sub-group functions
//                    (cl_khr_subgroups). Without it they go through local memory alone.
//
// Accuracy does not depend on these, except that MZ_HALF rounds products of queries and keys: a
// score may be off by about 2^-11 of its largest product, and products and sums of four must stay
// below 65504. Softmax denominators and outputs are float in all builds. Do not build with
// -cl-finite-math-only: arg-max passes over NaN.

#ifdef MZ_HALF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif
#ifdef MZ_SUBGROUP
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif

// Tokens of one chunk, and of its K and its V block.
#define CHUNK_TOKENS 256
// Where running maxima start. Infinity breaks exp2 in some compilers' fast modes.
#define LOWEST (-3.0e38f)
#define LOG2_E 1.44269504f

#define JOIN_WORDS(a, b) a##b
#define JOIN(a, b) JOIN_WORDS(a, b)
#define UNROLL _Pragma("unroll")
// PoCL 3.1 crashes when it inlines functions with barriers by itself.
#define INLINE static inline __attribute__((always_inline))

// One chunk of a layer's table, 16 bytes. `kind` says how the chunk is encoded; these kernels read
// KIND_F16 alone, and a table that holds others is given to kernels built for them. An F16 chunk is
// [K block, V block], each [kv_head][CHUNK_TOKENS][head_dim] halves; it starts at a multiple of 16.
typedef struct {
    ulong address;
    uint kind;
    uint tokens;
} Entry;

#define KIND_F16 1

#ifdef MZ_POOL
#define POOL_PARAMETER , __global uchar *pool
#define CHUNK(table, index) ((__global half *)(pool + (table)[index].address))
#else
#define POOL_PARAMETER
#define CHUNK(table, index) ((__global half *)(table)[index].address)
#endif

// Eight (four) halves at an address that is a multiple of 16 (8), in one load.
#ifdef __NV_CL_C_VERSION
// NVIDIA's compiler turns the built-in functions into one load for each half.
INLINE float2 widen(uint pair)
{
    float2 wide;
    asm("{ .reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(wide.x), "=f"(wide.y)
        : "r"(pair));
    return wide;
}

INLINE float4 widen4(uint2 raw)
{
    return (float4)(widen(raw.x), widen(raw.y));
}

INLINE float8 widen8(uint4 raw)
{
    return (float8)(widen(raw.x), widen(raw.y), widen(raw.z), widen(raw.w));
}

#define load_half4(from) widen4(*(const __global uint2 *)(from))
#define load_half8(from) widen8(*(const __global uint4 *)(from))
// The same out of local memory that holds halves as whole numbers.
#define load_staged4(from) widen4(*(from))
#define load_staged_half8(from) widen8(*(from))
#else
#define load_half4(from) vloada_half4(0, from)
#define load_half8(from) vloada_half8(0, from)
#define load_staged4(from) vloada_half4(0, (const __local half *)(from))
#define load_staged_half8(from) vloada_half8(0, (const __local half *)(from))
#endif

// Queries and keys in the arithmetic of the build. Queries arrive in the type QUERY, scaled.
#ifdef MZ_HALF
typedef half QUERY;
typedef half8 VECTOR8;
#define load_query8(from) (*(const __global half8 *)(from))
#define load_keys8(from) (*(const __global half8 *)(from))
#define load_staged8(from) (*(const __local half8 *)(from))
#else
typedef float QUERY;
typedef float8 VECTOR8;
#define load_query8(from) (*(const __global float8 *)(from))
#define load_keys8(from) load_half8(from)
#define load_staged8(from) load_staged_half8(from)
#endif

// The sum of products of eight values, added to `sum`.
INLINE float dot8(float8 a, float8 b, float sum)
{
    sum = mad(a.s0, b.s0, sum);
    sum = mad(a.s1, b.s1, sum);
    sum = mad(a.s2, b.s2, sum);
    sum = mad(a.s3, b.s3, sum);
    sum = mad(a.s4, b.s4, sum);
    sum = mad(a.s5, b.s5, sum);
    sum = mad(a.s6, b.s6, sum);
    return mad(a.s7, b.s7, sum);
}

// A score after the soft-cap (0: none), in log2 units.
INLINE float cap_score(float score, float softcap)
{
    return (softcap > 0.0f ? softcap * tanh(score / softcap) : score) * LOG2_E;
}

#define BARRIER barrier(CLK_LOCAL_MEM_FENCE)

// The sum of one value of each of `width` items (a power of two), for all items. `lanes` has room
// for `width` values.
INLINE float sum_group(__local float *lanes, float value, const uint width)
{
    const uint item = get_local_id(0);
#ifdef MZ_SUBGROUP
    value = sub_group_reduce_add(value);
    if (get_sub_group_local_id() == 0) {
        lanes[get_sub_group_id()] = value;
    }
    BARRIER;
    float total = 0.0f;
    for (uint i = 0; i < get_num_sub_groups(); i++) {
        total += lanes[i];
    }
#else
    lanes[item] = value;
    BARRIER;
    for (uint step = width / 2; step > 0; step /= 2) {
        if (item < step) {
            lanes[item] += lanes[item + step];
        }
        BARRIER;
    }
    const float total = lanes[0];
#endif
    BARRIER;
    return total;
}
