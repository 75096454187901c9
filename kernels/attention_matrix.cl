// Attention of a few queries over all chunks of a layer on matrix units: what mz_attention_stream
// does, with the same arguments and results, where nvidia.cl can be built. K and V go from where
// they lie to registers and into the matrix unit; nothing of them is staged in local memory.
//
// A work-group takes one KV head, one split and 16 rows; each of its warps takes KEYS keys of every
// chunk and keeps a maximum, a sum and outputs of its own, which are merged at the end. For item
// 4 g + q of a warp:
//
//     scores:   depth is the head's values, columns are 8 keys. The item loads 8 neighbouring
//               values of key g at once, and of queries alike: the order of the depth does not
//               matter, as long as both agree.
//     outputs:  depth is 16 keys, columns are 8 of the head's values. The item loads 8 neighbouring
//               values of keys 2 q, 2 q + 1, 2 q + 8, 2 q + 9 and pairs them up; column g of
//               product j is value 8 g + j of a slab of 64. p needs no exchange, since sums of
//               scores lie as the rows of that product do.
//
// A key or value is loaded once and converted never; p is rounded to half precision for the outputs
// but not for the sum.
//
// Build option: MZ_HEAD_DIM 64 or 128.
//
// mz_attention_matrix
//     As mz_attention_stream, but q is always half. Base addresses are multiples of 16.
//     Work-group: 128. Global: (128 x splits x blocks, kv_heads), blocks = rows / 16 rounded up,
//     rows = queries x heads / kv_heads.

#define DIM MZ_HEAD_DIM
#define ROWS 16
#define WARPS 4
#define WIDTH (32 * WARPS)
#define KEYS (CHUNK_TOKENS / WARPS)
// Products of 8 keys, of 32 values' depth, and of 64 values' outputs.
#define TILES (KEYS / 8)
#define PIECES (DIM / 32)
#define SLABS (DIM / 64)

typedef struct {
    float out[ROWS * DIM];
    float maximum[WARPS * ROWS];
    float sum[WARPS * ROWS];
} Shared;

// Rows g and g + 8 of this item: queries, and what was summed up so far.
typedef struct {
    uint4 low[PIECES];
    uint4 high[PIECES];
    uint last_low;
    uint last_high;
} Rows;

typedef struct {
    float2 maximum;
    float2 sum;
    float4 out[DIM / 8];
} Running;

INLINE uint head_of(uint row, uint heads, uint group, uint kv_head)
{
    return row / group * heads + kv_head * group + row % group;
}

INLINE uint4 load_query(const __global half *q, uint head, uint piece, bool is_row)
{
    const __global uint4 *from = (const __global uint4 *)(q + (ulong)head * DIM);
    return is_row ? from[piece * 4 + get_local_id(0) % 4] : (uint4)(0);
}

// Scores of this warp's keys. Keys outside of what anybody sees are not read.
INLINE void add_scores(float4 *scores, const Rows *rows, const __global half *k, uint from, uint to)
{
    const uint lane = get_local_id(0) % 32;
    const uint first = get_local_id(0) / 32 * KEYS + lane / 4;
    UNROLL for (uint tile = 0; tile < TILES; tile++) {
        const uint token = clamp(first + tile * 8, from, to - 1);
        const __global uint4 *key = (const __global uint4 *)(k + token * DIM) + lane % 4;
        float4 sums = (float4)(0.0f);
        UNROLL for (uint piece = 0; piece < PIECES; piece++) {
            const uint4 raw = load_vector(key + piece * 4);
            const uint4 low = rows->low[piece];
            const uint4 high = rows->high[piece];
            sums = multiply_16_8_16(sums, (uint4)(low.x, high.x, low.y, high.y), raw.xy);
            sums = multiply_16_8_16(sums, (uint4)(low.z, high.z, low.w, high.w), raw.zw);
        }
        scores[tile] = sums;
    }
}

INLINE float mask_score(float score, uint token, uint last, uint window)
{
    return token <= last && (window == 0 || token + window > last) ? score : LOWEST;
}

// Soft-cap and the change to log2 units; then keys that a row must not see get the lowest score.
INLINE void cap_and_mask(
    float4 *scores, const Rows *rows, float softcap, bool is_masked, uint window, uint start)
{
    UNROLL for (uint tile = 0; tile < TILES; tile++) {
        scores[tile].x = cap_score(scores[tile].x, softcap);
        scores[tile].y = cap_score(scores[tile].y, softcap);
        scores[tile].z = cap_score(scores[tile].z, softcap);
        scores[tile].w = cap_score(scores[tile].w, softcap);
    }
    if (is_masked) {
        const uint first = start + get_local_id(0) / 32 * KEYS + get_local_id(0) % 4 * 2;
        UNROLL for (uint tile = 0; tile < TILES; tile++) {
            const uint token = first + tile * 8;
            scores[tile].x = mask_score(scores[tile].x, token, rows->last_low, window);
            scores[tile].y = mask_score(scores[tile].y, token + 1, rows->last_low, window);
            scores[tile].z = mask_score(scores[tile].z, token, rows->last_high, window);
            scores[tile].w = mask_score(scores[tile].w, token + 1, rows->last_high, window);
        }
    }
}

// Before a row saw anything its maximum is as low as a masked score.
INLINE float power(float score, float top)
{
    return score > LOWEST ? native_exp2(score - top) : 0.0f;
}

// Scores to powers of two below the warp's running maximum, which is moved up first.
INLINE void soften(float4 *scores, Running *running)
{
    float2 top = running->maximum;
    UNROLL for (uint tile = 0; tile < TILES; tile++) {
        top.x = fmax(top.x, fmax(scores[tile].x, scores[tile].y));
        top.y = fmax(top.y, fmax(scores[tile].z, scores[tile].w));
    }
    top.x = fmax(top.x, swap_lanes(top.x, 1));
    top.x = fmax(top.x, swap_lanes(top.x, 2));
    top.y = fmax(top.y, swap_lanes(top.y, 1));
    top.y = fmax(top.y, swap_lanes(top.y, 2));
    const float low = native_exp2(running->maximum.x - top.x);
    const float high = native_exp2(running->maximum.y - top.y);
    running->maximum = top;
    running->sum *= (float2)(low, high);
    UNROLL for (uint i = 0; i < DIM / 8; i++) {
        running->out[i] *= (float4)(low, low, high, high);
    }
    UNROLL for (uint tile = 0; tile < TILES; tile++) {
        const float4 score = scores[tile];
        const float4 p = (float4)(power(score.x, top.x), power(score.y, top.x),
            power(score.z, top.y), power(score.w, top.y));
        running->sum += (float2)(p.x + p.y, p.z + p.w);
        scores[tile] = p;
    }
}

// Two products of outputs: the values that words a and b of two pairs of keys hold.
INLINE void add_pair(float4 *out, uint4 p, uint a0, uint a1, uint b0, uint b1)
{
    out[0] = multiply_16_8_16(out[0], p, (uint2)(join_low(a0, a1), join_low(b0, b1)));
    out[1] = multiply_16_8_16(out[1], p, (uint2)(join_high(a0, a1), join_high(b0, b1)));
}

// Adds the values of this warp's keys, weighted. p of keys that nobody sees is 0, and other keys'
// values are read in their place.
INLINE void add_values(
    Running *running, const float4 *p, const __global half *v, uint from, uint to)
{
    const uint lane = get_local_id(0) % 32;
    const uint first = get_local_id(0) / 32 * KEYS + lane % 4 * 2;
    const __global uint4 *column = (const __global uint4 *)v + lane / 4;
    UNROLL for (uint tile = 0; tile < TILES; tile += 2) {
        const float4 p0 = p[tile];
        const float4 p1 = p[tile + 1];
        const uint4 halves = (uint4)(
            narrow(p0.x, p0.y), narrow(p0.z, p0.w), narrow(p1.x, p1.y), narrow(p1.z, p1.w));
        const uint token = first + tile * 8;
        const __global uint4 *a0 = column + clamp(token, from, to - 1) * (DIM / 8);
        const __global uint4 *a1 = column + clamp(token + 1, from, to - 1) * (DIM / 8);
        const __global uint4 *b0 = column + clamp(token + 8, from, to - 1) * (DIM / 8);
        const __global uint4 *b1 = column + clamp(token + 9, from, to - 1) * (DIM / 8);
        UNROLL for (uint slab = 0; slab < SLABS; slab++) {
            const uint4 va0 = load_vector(a0 + slab * 8);
            const uint4 va1 = load_vector(a1 + slab * 8);
            const uint4 vb0 = load_vector(b0 + slab * 8);
            const uint4 vb1 = load_vector(b1 + slab * 8);
            float4 *out = running->out + slab * 8;
            add_pair(out + 0, halves, va0.x, va1.x, vb0.x, vb1.x);
            add_pair(out + 2, halves, va0.y, va1.y, vb0.y, vb1.y);
            add_pair(out + 4, halves, va0.z, va1.z, vb0.z, vb1.z);
            add_pair(out + 6, halves, va0.w, va1.w, vb0.w, vb1.w);
        }
    }
}

// Adds one warp's outputs to those of the warps before it.
INLINE void merge_warp(
    __local Shared *shared, const float4 *out, float2 factor, const bool is_first)
{
    const uint lane = get_local_id(0) % 32;
    UNROLL for (uint i = 0; i < DIM / 8; i++) {
        // Sums of columns 2 q and 2 q + 1 of product i % 8.
        const uint at = lane / 4 * DIM + i / 8 * 64 + lane % 4 * 16 + i % 8;
        __local float *low = shared->out + at;
        __local float *high = low + 8 * DIM;
        low[0] = out[i].x * factor.x + (is_first ? 0.0f : low[0]);
        low[8] = out[i].y * factor.x + (is_first ? 0.0f : low[8]);
        high[0] = out[i].z * factor.y + (is_first ? 0.0f : high[0]);
        high[8] = out[i].w * factor.y + (is_first ? 0.0f : high[8]);
    }
}

// Merges the warps, each with its own maximum, and writes the split's result.
INLINE void finish(
    __local Shared *shared, Running *running, __global float *partial, __global float2 *state,
    uint heads, uint group, uint kv_head, uint first_row, uint rows)
{
    const uint item = get_local_id(0);
    const uint warp = item / 32;
    const uint row = item % 32 / 4;
    float2 sum = running->sum;
    sum.x += swap_lanes(sum.x, 1);
    sum.x += swap_lanes(sum.x, 2);
    sum.y += swap_lanes(sum.y, 1);
    sum.y += swap_lanes(sum.y, 2);
    if (item % 4 == 0) {
        shared->maximum[warp * ROWS + row] = running->maximum.x;
        shared->maximum[warp * ROWS + row + 8] = running->maximum.y;
        shared->sum[warp * ROWS + row] = sum.x;
        shared->sum[warp * ROWS + row + 8] = sum.y;
    }
    BARRIER;
    float2 top = (float2)(LOWEST);
    UNROLL for (uint i = 0; i < WARPS; i++) {
        top.x = fmax(top.x, shared->maximum[i * ROWS + row]);
        top.y = fmax(top.y, shared->maximum[i * ROWS + row + 8]);
    }
    const float2 factor = (float2)(
        native_exp2(running->maximum.x - top.x), native_exp2(running->maximum.y - top.y));
    UNROLL for (uint i = 0; i < WARPS; i++) {
        if (warp == i) {
            merge_warp(shared, running->out, factor, i == 0);
        }
        BARRIER;
    }
    for (uint i = item; i < ROWS * (DIM / 4); i += WIDTH) {
        const uint at = first_row + i / (DIM / 4);
        if (at < rows) {
            __global float *to = partial + (ulong)head_of(at, heads, group, kv_head) * DIM;
            vstore4(vload4(i, shared->out), i % (DIM / 4), to);
        }
    }
    if (item < ROWS && first_row + item < rows) {
        float2 total = (float2)(LOWEST, 0.0f);
        UNROLL for (uint i = 0; i < WARPS; i++) {
            total.x = fmax(total.x, shared->maximum[i * ROWS + item]);
        }
        UNROLL for (uint i = 0; i < WARPS; i++) {
            const float change = shared->maximum[i * ROWS + item] - total.x;
            total.y += shared->sum[i * ROWS + item] * native_exp2(change);
        }
        state[head_of(first_row + item, heads, group, kv_head)] = total;
    }
}

__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void mz_attention_matrix(
    const __global half *q, const __global Entry *table, __global float *partial,
    __global float2 *state, uint heads, uint kv_heads, uint queries, uint position, uint window,
    float softcap, uint first_chunk, uint split_chunks POOL_PARAMETER)
{
    __local Shared shared;
    const uint group = heads / kv_heads;
    const uint rows = queries * group;
    const uint blocks = (rows + ROWS - 1) / ROWS;
    const uint split = get_group_id(0) / blocks;
    const uint first_row = get_group_id(0) % blocks * ROWS;
    const uint kv_head = get_group_id(1);

    Rows own;
    Running running;
    const uint low = first_row + get_local_id(0) % 32 / 4;
    const uint high = low + 8;
    own.last_low = position + min(low, rows - 1) / group;
    own.last_high = position + min(high, rows - 1) / group;
    UNROLL for (uint i = 0; i < PIECES; i++) {
        own.low[i] = load_query(q, head_of(low, heads, group, kv_head), i, low < rows);
        own.high[i] = load_query(q, head_of(high, heads, group, kv_head), i, high < rows);
    }
    running.maximum = (float2)(LOWEST);
    running.sum = (float2)(0.0f);
    UNROLL for (uint i = 0; i < DIM / 8; i++) {
        running.out[i] = (float4)(0.0f);
    }
    const uint end = position + queries;
    const uint first_seen = window != 0 && position >= window ? position - window + 1 : 0;
    const uint chunks = (end + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    const uint begin_chunk = first_chunk + split * split_chunks;
    const uint end_chunk = min(begin_chunk + split_chunks, chunks);
    for (uint chunk = begin_chunk; chunk < end_chunk; chunk++) {
        const uint start = chunk * CHUNK_TOKENS;
        const uint from = max(first_seen, start) - start;
        const uint to = min(end - start, (uint)CHUNK_TOKENS);
        if (from >= to) {
            continue;
        }
        const __global half *k = CHUNK(table, chunk) + kv_head * (CHUNK_TOKENS * DIM);
        const __global half *v = k + kv_heads * (CHUNK_TOKENS * DIM);
        const bool is_whole = start + CHUNK_TOKENS <= position + 1;
        const bool is_masked = !is_whole || (window != 0 && start + window < end);
        float4 scores[TILES];
        add_scores(scores, &own, k, from, to);
        cap_and_mask(scores, &own, softcap, is_masked, window, start);
        soften(scores, &running);
        add_values(&running, scores, v, from, to);
    }
    const ulong offset = (ulong)split * queries * heads;
    finish(&shared, &running, partial + offset * DIM, state + offset, heads, group, kv_head,
        first_row, rows);
}
