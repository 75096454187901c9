// From a layer's projections to what attention reads, one head of one token a work-group: queries
// and keys are normalised where the model does so and rotated, queries are scaled and written in
// the type that attention takes, keys and values are appended to the chunks as halves. Halves are
// rounded to the nearest, ties to even.
//
// Queries go to memory of their own as whole vectors of one type, because some compilers crash on
// attention over mixed types.
//
// Build option: MZ_HEAD_DIM, a multiple of 8.
//
// mz_heads
//     x           float [tokens][heads + 2 kv_heads][HEAD_DIM]: queries, keys, values
//     q           [tokens][heads][HEAD_DIM] halves or floats, output
//     table       Entry [chunks]; the chunks of the new tokens are read from it
//     frequencies float [HEAD_DIM / 2], radians a token, frequency factors included
//     unit, q_norm, k_norm  bytes of the weight window, and where in them the F32 weights
//                 [HEAD_DIM] of the norms start, or NO_NORM
//     epsilon     of the norms
//     heads, kv_heads
//     position    of the first token
//     is_adjacent 1: pairs are values 2 i and 2 i + 1; 0: values i and i + HEAD_DIM / 2
//     scale       of queries
//     is_half     whether q are halves
//     Work-group: HEADS_WIDTH. Global: (HEADS_WIDTH x (heads + 2 kv_heads), tokens). Build without
//     fast relaxed math: angles reach hundreds of thousands of radians.

#define DIM MZ_HEAD_DIM
#define HEADS_WIDTH 64
#define NO_NORM 0xffffffffffffffffUL

__kernel __attribute__((reqd_work_group_size(HEADS_WIDTH, 1, 1))) void mz_heads(
    const __global float *x, __global uchar *q, const __global Entry *table,
    const __global float *frequencies, const __global uchar *unit, ulong q_norm, ulong k_norm,
    float epsilon, uint heads, uint kv_heads, uint position, uint is_adjacent, float scale,
    uint is_half POOL_PARAMETER)
{
    __local float lanes[HEADS_WIDTH];
    const uint item = get_local_id(0);
    const uint head = get_group_id(0);
    const uint token = get_group_id(1);
    const uint place = position + token;
    const bool is_query = head < heads;
    const bool is_value = head >= heads + kv_heads;
    const __global float *from = x + ((ulong)token * (heads + 2 * kv_heads) + head) * DIM;
    const ulong norm = is_query ? q_norm : is_value ? NO_NORM : k_norm;
    const __global float *weights = (const __global float *)(unit + norm);
    float sum = 0.0f;
    for (uint i = item; i < DIM; i += HEADS_WIDTH) {
        sum = mad(from[i], from[i], sum);
    }
    sum = sum_group(lanes, sum, HEADS_WIDTH);
    const float factor = 1.0f / sqrt(sum / (float)DIM + epsilon);
    // Where the head's values go: halves, or floats at the same numbers.
    __global half *to;
    if (is_query) {
        to = (__global half *)q;
    } else {
        to = CHUNK(table, place / CHUNK_TOKENS);
    }
    // Keys come first in a chunk, and values as if they were further heads.
    const ulong start = is_query ? ((ulong)token * heads + head) * DIM
                                 : ((head - heads) * CHUNK_TOKENS + place % CHUNK_TOKENS) * DIM;
    for (uint pair = item; pair < DIM / 2; pair += HEADS_WIDTH) {
        const uint first = is_adjacent ? 2 * pair : pair;
        const uint second = first + (is_adjacent ? 1 : DIM / 2);
        float a = from[first];
        float b = from[second];
        if (norm != NO_NORM) {
            a = a * factor * weights[first];
            b = b * factor * weights[second];
        }
        if (!is_value) {
            const float angle = (float)place * frequencies[pair];
            const float c = cos(angle) * (is_query ? scale : 1.0f);
            const float s = sin(angle) * (is_query ? scale : 1.0f);
            const float rotated = a * c - b * s;
            b = a * s + b * c;
            a = rotated;
        }
        if (is_query && !is_half) {
            ((__global float *)q)[start + first] = a;
            ((__global float *)q)[start + second] = b;
        } else {
            vstore_half_rte(a, start + first, to);
            vstore_half_rte(b, start + second, to);
        }
    }
}
