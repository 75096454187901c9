// Attention of a few queries over all chunks of a layer on matrix units: what mz_attention_stream
// and mz_attention_combine do together, where nvidia.cl can be built. K and V go from where they
// lie to registers and into the matrix unit; nothing of them is staged in local memory.
//
// A work-group takes one KV head, one split of the keys and 16 or 32 rows; its warps take
// neighbouring runs of keys, step by step, and each keeps a maximum, a sum and outputs of its own.
// While a step is computed the keys of the next are on their way: with one work-group on a compute
// unit that is what keeps enough bytes in flight. At the end the warps' results are merged, and the
// last work-group of a head to get there adds up the splits. For item 4 g + q of a warp:
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
// Build options: MZ_HEAD_DIM 64 or 128; MZ_BLOCKS, blocks of 16 rows of a work-group: 1, or 2 for
// heads of 64.
//
// mz_attention_matrix
//     q           half [queries][heads][HEAD_DIM], scaled and rotated
//     table       Entry [chunks]
//     partial     float [splits][queries x heads][HEAD_DIM], scratch
//     state       float2 [splits][queries x heads], scratch
//     counters    uint [kv_heads][row groups], zero before and after
//     y           float [queries][heads][HEAD_DIM], output
//     heads, kv_heads, queries, position, window, softcap  as for mz_attention_stream
//     splits, warp_steps  a warp takes warp_steps steps of STEP_KEYS keys, a split those of all
//                 its warps; the first step holds the first key that the window lets be seen
//     pool        with MZ_POOL
//     Work-group: 256. Global: (256 x splits x row groups, kv_heads), row groups = rows / ROWS
//     rounded up, rows = queries x heads / kv_heads. Base addresses are multiples of 16.

#define DIM MZ_HEAD_DIM
#define BLOCKS MZ_BLOCKS
#define ROWS (16 * BLOCKS)
#define WARPS 8
#define WIDTH (32 * WARPS)
// 8 loads of 16 bytes for keys and 8 for values of each item.
#define STEP_KEYS (2048 / DIM)
#define LOADS 8
#define CHUNK_STEPS (CHUNK_TOKENS / STEP_KEYS)
// Products of 8 keys, of 32 values' depth, and of 64 values' outputs.
#define TILES (STEP_KEYS / 8)
#define PIECES (DIM / 32)
#define SLABS (DIM / 64)
// Places for outputs of warps, and of a row there: apart, so that rows fall into different banks.
#define SLOTS (WARPS / 2)
#define ROW_STRIDE (DIM + 4)
// Outputs are written four at a time.
#define SLICES (DIM / 4)
#define SHARES (ROWS * SLICES / WIDTH)

typedef struct {
    float out[SLOTS * ROWS * ROW_STRIDE];
    float maximum[WARPS * ROWS];
    float sum[WARPS * ROWS];
    uint is_last;
} __attribute__((aligned(16))) Shared;

// Which rows a work-group computes: `group` query heads share a KV head.
typedef struct {
    uint heads;
    uint group;
    uint kv_head;
    uint first_row;
    uint rows;
    uint rows_all;
    uint split;
} Place;

// Rows g and g + 8 of a block of 16: queries, and what was summed up so far.
typedef struct {
    uint4 low[PIECES];
    uint4 high[PIECES];
    uint last_low;
    uint last_high;
} Queries;

typedef struct {
    float2 maximum;
    float2 sum;
    float4 out[DIM / 8];
} Running;

// The row among those of all queries and heads.
INLINE uint row_of(const Place *place, uint row)
{
    row += place->first_row;
    return row / place->group * place->heads + place->kv_head * place->group + row % place->group;
}

INLINE uint4 load_query(const __global half *q, const Place *place, uint row, uint piece)
{
    const __global uint4 *from = (const __global uint4 *)(q + (ulong)row_of(place, row) * DIM);
    const bool is_row = place->first_row + row < place->rows;
    return is_row ? from[piece * 4 + get_local_id(0) % 4] : (uint4)(0);
}

INLINE void start_block(
    Queries *own, Running *running, const __global half *q, const Place *place, uint block,
    uint position)
{
    const uint low = block * 16 + get_local_id(0) % 32 / 4;
    const uint last_row = place->rows - 1;
    own->last_low = position + min(place->first_row + low, last_row) / place->group;
    own->last_high = position + min(place->first_row + low + 8, last_row) / place->group;
    UNROLL for (uint i = 0; i < PIECES; i++) {
        own->low[i] = load_query(q, place, low, i);
        own->high[i] = load_query(q, place, low + 8, i);
    }
    running->maximum = (float2)(LOWEST);
    running->sum = (float2)(0.0f);
    UNROLL for (uint i = 0; i < DIM / 8; i++) {
        running->out[i] = (float4)(0.0f);
    }
}

// The keys of a step, `first` being its first token in the chunk. Tokens behind `last` do not hold
// anything yet: it is read in their place.
INLINE void load_keys(uint4 *keys, const __global half *k, uint first, uint last)
{
    const uint lane = get_local_id(0) % 32;
    UNROLL for (uint tile = 0; tile < TILES; tile++) {
        const uint token = min(first + tile * 8 + lane / 4, last);
        const __global uint4 *key = (const __global uint4 *)(k + token * DIM) + lane % 4;
        UNROLL for (uint piece = 0; piece < PIECES; piece++) {
            keys[tile * PIECES + piece] = load_vector(key + piece * 4);
        }
    }
}

INLINE void load_values(uint4 *values, const __global half *v, uint first, uint last)
{
    const uint lane = get_local_id(0) % 32;
    const __global uint4 *column = (const __global uint4 *)v + lane / 4;
    UNROLL for (uint i = 0; i < 2 * TILES; i++) {
        const uint token = min(first + i / 2 * 8 + lane % 4 * 2 + i % 2, last);
        UNROLL for (uint slab = 0; slab < SLABS; slab++) {
            values[i * SLABS + slab] = load_vector(column + token * (DIM / 8) + slab * 8);
        }
    }
}

INLINE void add_scores(float4 *scores, const Queries *own, const uint4 *keys)
{
    UNROLL for (uint tile = 0; tile < TILES; tile++) {
        UNROLL for (uint block = 0; block < BLOCKS; block++) {
            float4 sums = (float4)(0.0f);
            UNROLL for (uint piece = 0; piece < PIECES; piece++) {
                const uint4 key = keys[tile * PIECES + piece];
                const uint4 low = own[block].low[piece];
                const uint4 high = own[block].high[piece];
                sums = multiply_16_8_16(sums, (uint4)(low.x, high.x, low.y, high.y), key.xy);
                sums = multiply_16_8_16(sums, (uint4)(low.z, high.z, low.w, high.w), key.zw);
            }
            scores[block * TILES + tile] = sums;
        }
    }
}

INLINE float mask_score(float score, uint token, uint last, uint window)
{
    return token <= last && (window == 0 || token + window > last) ? score : LOWEST;
}

// Keys that a row must not see get the lowest score. `first` is the step's first token.
INLINE void mask(float4 *scores, const Queries *own, uint first, uint window)
{
    UNROLL for (uint tile = 0; tile < TILES; tile++) {
        const uint token = first + tile * 8 + get_local_id(0) % 4 * 2;
        scores[tile].x = mask_score(scores[tile].x, token, own->last_low, window);
        scores[tile].y = mask_score(scores[tile].y, token + 1, own->last_low, window);
        scores[tile].z = mask_score(scores[tile].z, token, own->last_high, window);
        scores[tile].w = mask_score(scores[tile].w, token + 1, own->last_high, window);
    }
}

INLINE void cap(float4 *scores, float softcap)
{
    UNROLL for (uint tile = 0; tile < TILES; tile++) {
        scores[tile].x = cap_score(scores[tile].x, softcap);
        scores[tile].y = cap_score(scores[tile].y, softcap);
        scores[tile].z = cap_score(scores[tile].z, softcap);
        scores[tile].w = cap_score(scores[tile].w, softcap);
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

// Adds the values of a step, weighted. p of keys that nobody sees is 0.
INLINE void add_values(Running *running, const float4 *p, const uint4 *values)
{
    UNROLL for (uint tile = 0; tile < TILES; tile += 2) {
        UNROLL for (uint slab = 0; slab < SLABS; slab++) {
            const uint4 a0 = values[(tile * 2 + 0) * SLABS + slab];
            const uint4 a1 = values[(tile * 2 + 1) * SLABS + slab];
            const uint4 b0 = values[(tile * 2 + 2) * SLABS + slab];
            const uint4 b1 = values[(tile * 2 + 3) * SLABS + slab];
            UNROLL for (uint block = 0; block < BLOCKS; block++) {
                const float4 p0 = p[block * TILES + tile];
                const float4 p1 = p[block * TILES + tile + 1];
                const uint4 halves = (uint4)(
                    narrow(p0.x, p0.y), narrow(p0.z, p0.w), narrow(p1.x, p1.y), narrow(p1.z, p1.w));
                float4 *out = running[block].out + slab * 8;
                add_pair(out + 0, halves, a0.x, a1.x, b0.x, b1.x);
                add_pair(out + 2, halves, a0.y, a1.y, b0.y, b1.y);
                add_pair(out + 4, halves, a0.z, a1.z, b0.z, b1.z);
                add_pair(out + 6, halves, a0.w, a1.w, b0.w, b1.w);
            }
        }
    }
}

// The warp's sums and maxima, for all to see.
INLINE void share_state(__local Shared *shared, const Running *running, uint block)
{
    const uint item = get_local_id(0);
    float2 sum = running->sum;
    sum.x += swap_lanes(sum.x, 1);
    sum.x += swap_lanes(sum.x, 2);
    sum.y += swap_lanes(sum.y, 1);
    sum.y += swap_lanes(sum.y, 2);
    if (item % 4 == 0) {
        const uint at = item / 32 * ROWS + block * 16 + item % 32 / 4;
        shared->maximum[at] = running->maximum.x;
        shared->maximum[at + 8] = running->maximum.y;
        shared->sum[at] = sum.x;
        shared->sum[at + 8] = sum.y;
    }
}

INLINE float highest(const __local Shared *shared, uint row)
{
    float top = LOWEST;
    UNROLL for (uint warp = 0; warp < WARPS; warp++) {
        top = fmax(top, shared->maximum[warp * ROWS + row]);
    }
    return top;
}

INLINE void put(__local float4 *to, float4 value, const bool is_sum)
{
    *to = is_sum ? *to + value : value;
}

// Puts (or adds) a block's outputs, relative to the highest maximum of all warps, into the slot.
INLINE void put_outputs(
    __local Shared *shared, const Running *running, uint block, const bool is_sum)
{
    const uint lane = get_local_id(0) % 32;
    const uint row = block * 16 + lane / 4;
    const uint slot = get_local_id(0) / 32 % SLOTS;
    const float2 top = (float2)(highest(shared, row), highest(shared, row + 8));
    const float2 factor = native_exp2(running->maximum - top);
    __local float *at = shared->out + (slot * ROWS + row) * ROW_STRIDE + lane % 4 * 16;
    UNROLL for (uint i = 0; i < DIM / 8; i += 4) {
        // Sums of columns 2 q and 2 q + 1 of product i % 8.
        const float4 *out = running->out + i;
        __local float4 *low = (__local float4 *)(at + i / 8 * 64 + i % 8);
        __local float4 *high = low + 8 * ROW_STRIDE / 4;
        put(low, (float4)(out[0].x, out[1].x, out[2].x, out[3].x) * factor.x, is_sum);
        put(low + 2, (float4)(out[0].y, out[1].y, out[2].y, out[3].y) * factor.x, is_sum);
        put(high, (float4)(out[0].z, out[1].z, out[2].z, out[3].z) * factor.y, is_sum);
        put(high + 2, (float4)(out[0].w, out[1].w, out[2].w, out[3].w) * factor.y, is_sum);
    }
}

// Merges the warps: the slots then hold outputs whose sum is the work-group's.
INLINE void merge(__local Shared *shared, const Running *running)
{
    const bool is_upper = get_local_id(0) / 32 >= SLOTS;
    UNROLL for (uint block = 0; block < BLOCKS; block++) {
        share_state(shared, running + block, block);
    }
    BARRIER;
    UNROLL for (uint block = 0; block < BLOCKS; block++) {
        if (is_upper) {
            put_outputs(shared, running + block, block, false);
        }
    }
    BARRIER;
    UNROLL for (uint block = 0; block < BLOCKS; block++) {
        if (!is_upper) {
            put_outputs(shared, running + block, block, true);
        }
    }
    BARRIER;
}

// Writes the split's result.
INLINE void write_split(
    const __local Shared *shared, const Place *place, __global float4 *partial,
    __global float2 *state)
{
    const uint item = get_local_id(0);
    const ulong start = (ulong)place->split * place->rows_all;
    UNROLL for (uint share = item; share < ROWS * SLICES; share += WIDTH) {
        const uint row = share / SLICES;
        if (place->first_row + row < place->rows) {
            float4 sum = (float4)(0.0f);
            UNROLL for (uint slot = 0; slot < SLOTS; slot++) {
                const __local float *out = shared->out + (slot * ROWS + row) * ROW_STRIDE;
                sum += *(const __local float4 *)(out + share % SLICES * 4);
            }
            partial[(start + row_of(place, row)) * SLICES + share % SLICES] = sum;
        }
    }
    if (item < ROWS && place->first_row + item < place->rows) {
        const float top = highest(shared, item);
        float sum = 0.0f;
        UNROLL for (uint warp = 0; warp < WARPS; warp++) {
            const uint at = warp * ROWS + item;
            sum += shared->sum[at] * native_exp2(shared->maximum[at] - top);
        }
        state[start + row_of(place, item)] = (float2)(top, sum);
    }
}

// Adds the splits up, as mz_attention_combine does.
INLINE void combine(
    const Place *place, const __global float4 *partial, const __global float2 *state,
    __global float4 *y, uint splits)
{
    UNROLL for (uint share = get_local_id(0); share < ROWS * SLICES; share += WIDTH) {
        const uint row = share / SLICES;
        if (place->first_row + row >= place->rows) {
            continue;
        }
        const uint at = row_of(place, row);
        float top = LOWEST;
#pragma unroll 8
        for (uint split = 0; split < splits; split++) {
            top = fmax(top, state[(ulong)split * place->rows_all + at].x);
        }
        float sum = 0.0f;
        float4 out = (float4)(0.0f);
#pragma unroll 8
        for (uint split = 0; split < splits; split++) {
            const ulong from = (ulong)split * place->rows_all + at;
            const float weight = native_exp2(state[from].x - top);
            sum += weight * state[from].y;
            out += weight * partial[from * SLICES + share % SLICES];
        }
        y[(ulong)at * SLICES + share % SLICES] = out / sum;
    }
}

__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void mz_attention_matrix(
    const __global half *q, const __global Entry *table, __global float *partial,
    __global float2 *state, __global uint *counters, __global float *y, uint heads, uint kv_heads,
    uint queries, uint position, uint window, float softcap, uint splits,
    uint warp_steps POOL_PARAMETER)
{
    __local Shared shared;
    const uint group = heads / kv_heads;
    const uint row_group = get_group_id(0) / splits;
    const Place place = {
        .heads = heads,
        .group = group,
        .kv_head = get_group_id(1),
        .first_row = row_group * ROWS,
        .rows = queries * group,
        .rows_all = queries * heads,
        .split = get_group_id(0) % splits,
    };
    Queries own[BLOCKS];
    Running running[BLOCKS];
    UNROLL for (uint block = 0; block < BLOCKS; block++) {
        start_block(own + block, running + block, q, &place, block, position);
    }
    const uint end = position + queries;
    const uint first_seen = window != 0 && position >= window ? position - window + 1 : 0;
    const uint warp = place.split * WARPS + get_local_id(0) / 32;
    const uint begin = first_seen / STEP_KEYS + warp * warp_steps;
    const uint until = min(begin + warp_steps, (end + STEP_KEYS - 1) / STEP_KEYS);
    // Of a step: its chunk's keys, its first token there, and the last that holds anything.
#define STEP_BASE(step) (CHUNK(table, (step) / CHUNK_STEPS) + place.kv_head * (CHUNK_TOKENS * DIM))
#define STEP_FIRST(step) ((step) % CHUNK_STEPS * STEP_KEYS)
#define STEP_LAST(step) (end - 1 - (step) / CHUNK_STEPS * CHUNK_TOKENS)
    if (begin < until) {
        uint4 keys[LOADS];
        const __global half *k = STEP_BASE(begin);
        const __global half *next = STEP_BASE(min(begin + 1, until - 1));
        load_keys(keys, k, STEP_FIRST(begin), STEP_LAST(begin));
        for (uint step = begin; step < until; step++) {
            uint4 values[LOADS];
            float4 scores[BLOCKS * TILES];
            const __global half *v = k + kv_heads * (CHUNK_TOKENS * DIM);
            load_values(values, v, STEP_FIRST(step), STEP_LAST(step));
            add_scores(scores, own, keys);
            k = next;
            if (step + 1 < until) {
                load_keys(keys, k, STEP_FIRST(step + 1), STEP_LAST(step + 1));
            }
            next = STEP_BASE(min(step + 2, until - 1));
            const uint first = step * STEP_KEYS;
            const bool is_masked =
                first + STEP_KEYS > position + 1 || (window != 0 && first + window < end);
            UNROLL for (uint block = 0; block < BLOCKS; block++) {
                float4 *of_block = scores + block * TILES;
                cap(of_block, softcap);
                if (is_masked) {
                    mask(of_block, own + block, first, window);
                }
                soften(of_block, running + block);
            }
            add_values(running, scores, values);
        }
    }
    merge(&shared, running);
    write_split(&shared, &place, (__global float4 *)partial, state);
    BARRIER;
    if (get_local_id(0) == 0) {
        const uint counter = place.kv_head * (get_num_groups(0) / splits) + row_group;
        shared.is_last = arrive_last(counters + counter, splits);
    }
    BARRIER;
    if (shared.is_last) {
        combine(&place, (const __global float4 *)partial, state, (__global float4 *)y, splits);
    }
}
