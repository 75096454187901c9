// What OpenCL C has no words for on NVIDIA's GPUs: a warp's matrix unit, its shuffles, and memory
// that work-groups of one launch exchange. It is put after common.cl and before the kernels that
// need it. Compute capability 8.0 or later.
//
// A warp is 32 items. Of a product of 16 rows, 8 columns and a depth of 16, item 4 g + q holds
//     a:    halves of rows g and g + 8, pairs of depth 2 q and 2 q + 8: (g, 2 q), (g + 8, 2 q),
//           (g, 2 q + 8), (g + 8, 2 q + 8)
//     b:    halves of column g, pairs of depth 2 q and 2 q + 8
//     sums: (g, 2 q), (g, 2 q + 1), (g + 8, 2 q), (g + 8, 2 q + 1)

// sums += a b.
INLINE float4 multiply_16_8_16(float4 sums, uint4 a, uint2 b)
{
    float s0 = sums.x;
    float s1 = sums.y;
    float s2 = sums.z;
    float s3 = sums.w;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
    return (float4)(s0, s1, s2, s3);
}

// The value of the item of the same warp whose number differs in the bits of `mask`.
INLINE float swap_lanes(float value, const uint mask)
{
    float other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
                 : "=f"(other)
                 : "f"(value), "r"(mask));
    return other;
}

// 16 bytes that no kernel writes meanwhile and that are read once, in one load.
INLINE uint4 load_vector(const __global uint4 *from)
{
    uint4 raw;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
        : "l"(from));
    return raw;
}

// Two singles to a pair of halves, the first one lower, to the nearest.
INLINE uint narrow(float low, float high)
{
    uint pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// The lower (upper) halves of two words, the first one's lower.
INLINE uint join_low(uint first, uint second)
{
    uint pair;
    asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(pair) : "r"(first), "r"(second));
    return pair;
}

INLINE uint join_high(uint first, uint second)
{
    uint pair;
    asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(pair) : "r"(first), "r"(second));
    return pair;
}

// Counts the work-groups that are done with their part, and says whether this one is the last of
// `all`: then it sees what the others have written, and the counter is zero again. One item of the
// work-group calls it, between barriers.
INLINE bool arrive_last(__global uint *counter, uint all)
{
    uint before;
    asm volatile("fence.acq_rel.gpu;\n\tatom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(counter)
                 : "memory");
    const bool is_last = before + 1 == all;
    if (is_last) {
        asm volatile("st.relaxed.gpu.global.u32 [%0], 0;\n\tfence.acq_rel.gpu;"
                     :
                     : "l"(counter)
                     : "memory");
    }
    return is_last;
}
