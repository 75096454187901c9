// Attention of a few queries over all chunks of a layer: one pass, online softmax, K and V streamed
// from where they lie. Nothing of K or V is staged in local memory.
//
// A work-group takes one KV head, one run of chunks (a split) and ROWS rows; a row is one query of
// one query head of the KV head's group, so all rows use each key and value that is loaded:
//
//     for each chunk of the split:
//         item i:  scores of keys i, i + WIDTH, ... for all rows     ROWS x EACH sums in registers
//         group:   maximum of each row, factor = exp2(old - new)
//         item i:  p = exp2(score - maximum) into local memory, sums of p
//         item i:  out[row] = out[row] factor + sum of p[token][row] V[token][slice], its tokens
//
// The slice of an item is VEC values of the head; WIDTH / SLICES teams of items share the tokens.
// Each key loaded is used ROWS times, each query loaded from local memory EACH times, each value
// ROWS times and each four p in one load VEC times: with 16 rows, for 64 multiplications, 4 local
// loads of 16 bytes and 4 (K) or 4 (V) conversions. On a GPU with 4 TB/s and 60 TFLOP/s of float
// that arithmetic takes as long as the memory; both overlap between work-groups. A split's partial
// result goes to scratch; attention_combine.cl adds the splits up.
//
// Build options: MZ_HEAD_DIM, a multiple of 8 from 32 to 256; MZ_ROWS 1, 2, 3, or a multiple of 4
// up to 16; MZ_WIDTH 64 or 128.
//
// mz_attention_stream
//     q           QUERY [queries][heads][HEAD_DIM], multiplied by the attention scale already
//     table       Entry [chunks]; read from first_chunk up to the chunk of the last query
//     partial     float [splits][queries x heads][HEAD_DIM], output, not yet divided by the sum
//     state       float2 [splits][queries x heads], output: maximum (in log2 units) and sum. Where
//                 a split has nothing to see the sum is 0 and `partial` is not written.
//     heads, kv_heads, queries   heads is a multiple of kv_heads
//     position    of the first query; K and V of all queries are in the chunks already
//     window      keys that a query sees, itself included; 0: all
//     softcap     scores become softcap tanh(score / softcap); 0: as they are
//     first_chunk, split_chunks  split s takes chunks first_chunk + s split_chunks and following
//     Work-group: WIDTH. Global: (WIDTH x splits x blocks, kv_heads), blocks = rows / ROWS rounded
//     up, rows = queries x heads / kv_heads. Chunks that no query sees are not read.

#define DIM MZ_HEAD_DIM
#define ROWS MZ_ROWS
#define WIDTH MZ_WIDTH
// Keys of a chunk that one item takes.
#define EACH (CHUNK_TOKENS / WIDTH)
#define VEC 4
#define SLICES (DIM / VEC)
#define TEAMS (WIDTH / SLICES)
// Rows whose p lie side by side in local memory.
#if ROWS % 4 == 0
#define PLANE 4
typedef float4 PLANE_P;
#else
#define PLANE 1
typedef float PLANE_P;
#endif
#define PLANES (ROWS / PLANE)
// Items that share the reduction of a row, and the row pitch that avoids bank conflicts.
#define SHARES (WIDTH / ROWS)
#define PITCH (WIDTH + SHARES)
// Vectors of 8 that are multiplied in half precision before the sum goes on in single.
#define CHAIN (DIM % 32 == 0 ? 4 : DIM % 16 == 0 ? 2 : 1)

// What a work-group keeps in local memory.
typedef struct {
    VECTOR8 queries[ROWS * (DIM / 8)];
    // Between two barriers also the items' values in a reduction, and the teams' outputs at last.
    PLANE_P p[PLANES * CHUNK_TOKENS];
    float shares[ROWS * SHARES];
    float maximum[ROWS];
    float factor[ROWS];
    // The last position that a row sees.
    uint last[ROWS];
} Shared;

// A running split: sums of p for this item's keys, outputs for this item's slice and tokens.
typedef struct {
    float sum[ROWS];
    float4 out[ROWS];
} Running;

// Adds products of keys and queries to scores[row * EACH + key].
INLINE void add_scores(float *scores, const __global half **keys, const __local VECTOR8 *queries)
{
#ifdef MZ_HALF
    for (uint d = 0; d < DIM / 8; d += CHAIN) {
        half8 k[EACH * CHAIN];
        UNROLL for (uint i = 0; i < EACH * CHAIN; i++) {
            k[i] = load_keys8(keys[i / CHAIN] + (d + i % CHAIN) * 8);
        }
        UNROLL for (uint row = 0; row < ROWS; row++) {
            UNROLL for (uint i = 0; i < EACH; i++) {
                half8 products = queries[row * (DIM / 8) + d] * k[i * CHAIN];
                UNROLL for (uint c = 1; c < CHAIN; c++) {
                    products += queries[row * (DIM / 8) + d + c] * k[i * CHAIN + c];
                }
                const float8 wide = convert_float8(products);
                const float4 four = wide.lo + wide.hi;
                scores[row * EACH + i] += four.x + four.y + (four.z + four.w);
            }
        }
    }
#else
#pragma unroll 2
    for (uint d = 0; d < DIM / 8; d++) {
        float8 k[EACH];
        UNROLL for (uint i = 0; i < EACH; i++) {
            k[i] = load_keys8(keys[i] + d * 8);
        }
        UNROLL for (uint row = 0; row < ROWS; row++) {
            const float8 q = queries[row * (DIM / 8) + d];
            UNROLL for (uint i = 0; i < EACH; i++) {
                scores[row * EACH + i] = dot8(q, k[i], scores[row * EACH + i]);
            }
        }
    }
#endif
}

// The maximum (sum) of each row's value over all items, for items below ROWS, after one barrier.
INLINE float reduce_rows(__local Shared *shared, const float *values, const bool is_sum)
{
    const uint item = get_local_id(0);
    __local float *lanes = (__local float *)shared->p;
    float total = is_sum ? 0.0f : LOWEST;
#ifdef MZ_SUBGROUP
    UNROLL for (uint row = 0; row < ROWS; row++) {
        const float value = is_sum ? sub_group_reduce_add(values[row])
                                   : sub_group_reduce_max(values[row]);
        if (get_sub_group_local_id() == 0) {
            lanes[row * PITCH + get_sub_group_id()] = value;
        }
    }
    BARRIER;
    const __local float *parts = lanes + item * PITCH;
    const uint count = get_num_sub_groups();
#else
    UNROLL for (uint row = 0; row < ROWS; row++) {
        lanes[row * PITCH + item] = values[row];
    }
    BARRIER;
    if (item < ROWS * SHARES) {
        float share = is_sum ? 0.0f : LOWEST;
        for (uint i = item % SHARES; i < WIDTH; i += SHARES) {
            const float value = lanes[item / SHARES * PITCH + i];
            share = is_sum ? share + value : fmax(share, value);
        }
        shared->shares[item] = share;
    }
    BARRIER;
    const __local float *parts = shared->shares + item * SHARES;
    const uint count = SHARES;
#endif
    if (item < ROWS) {
        for (uint i = 0; i < count; i++) {
            total = is_sum ? total + parts[i] : fmax(total, parts[i]);
        }
    }
    return total;
}

// Scores to powers of two below the running maximum, which is moved up first.
INLINE void soften(__local Shared *shared, Running *running, const float *scores)
{
    const uint item = get_local_id(0);
    float highest[ROWS];
    UNROLL for (uint row = 0; row < ROWS; row++) {
        highest[row] = scores[row * EACH];
        UNROLL for (uint i = 1; i < EACH; i++) {
            highest[row] = fmax(highest[row], scores[row * EACH + i]);
        }
    }
    const float maximum = reduce_rows(shared, highest, false);
    if (item < ROWS) {
        const float before = shared->maximum[item];
        const float after = fmax(before, maximum);
        shared->maximum[item] = after;
        shared->factor[item] = native_exp2(before - after);
    }
    BARRIER;
    UNROLL for (uint plane = 0; plane < PLANES; plane++) {
        float p[PLANE * EACH];
        UNROLL for (uint row = 0; row < PLANE; row++) {
            const float top = shared->maximum[plane * PLANE + row];
            const float factor = shared->factor[plane * PLANE + row];
            float sum = running->sum[plane * PLANE + row] * factor;
            UNROLL for (uint i = 0; i < EACH; i++) {
                const float score = scores[(plane * PLANE + row) * EACH + i];
                // Before a row saw anything its maximum is as low as a masked score.
                p[row * EACH + i] = score > LOWEST ? native_exp2(score - top) : 0.0f;
                sum += p[row * EACH + i];
            }
            running->sum[plane * PLANE + row] = sum;
            running->out[plane * PLANE + row] *= factor;
        }
        UNROLL for (uint i = 0; i < EACH; i++) {
            __local PLANE_P *to = shared->p + plane * CHUNK_TOKENS + item + i * WIDTH;
#if PLANE == 4
            *to = (float4)(p[i], p[EACH + i], p[2 * EACH + i], p[3 * EACH + i]);
#else
            *to = p[i];
#endif
        }
    }
    BARRIER;
}

// Adds one token's value, weighted.
INLINE void add_value(const __local Shared *shared, Running *running, float4 value, uint token)
{
    UNROLL for (uint plane = 0; plane < PLANES; plane++) {
        const PLANE_P p = shared->p[plane * CHUNK_TOKENS + token];
        float4 *out = running->out + plane * PLANE;
#if PLANE == 4
        out[0] = mad(value, (float4)(p.x), out[0]);
        out[1] = mad(value, (float4)(p.y), out[1]);
        out[2] = mad(value, (float4)(p.z), out[2]);
        out[3] = mad(value, (float4)(p.w), out[3]);
#else
        out[0] = mad(value, (float4)(p), out[0]);
#endif
    }
}

// Adds the values of tokens from `from` up to `to`, weighted. The loop is the same for all items;
// the tokens that are left over are fewer than teams.
INLINE void add_values(
    const __local Shared *shared, Running *running, const __global half *values, uint from, uint to)
{
    const uint item = get_local_id(0);
    if (item < TEAMS * SLICES) {
        const __global half *slice = values + item % SLICES * VEC;
        uint token = from + item / SLICES;
#pragma unroll 4
        for (uint steps = (to - from) / TEAMS; steps > 0; steps--) {
            add_value(shared, running, load_half4(slice + token * DIM), token);
            token += TEAMS;
        }
        if (token < to) {
            add_value(shared, running, load_half4(slice + token * DIM), token);
        }
    }
}

// Soft-cap and the change to log2 units; then keys that a row must not see get the lowest score.
// `from` and `to` bound the tokens of the chunk that anybody sees.
INLINE void cap_and_mask(
    const __local Shared *shared, float *scores, float softcap, bool is_masked, uint window,
    uint start, uint from, uint to)
{
    UNROLL for (uint i = 0; i < ROWS * EACH; i++) {
        scores[i] = cap_score(scores[i], softcap);
    }
    if (!is_masked) {
        return;
    }
    UNROLL for (uint i = 0; i < EACH; i++) {
        const uint token = get_local_id(0) + i * WIDTH;
        UNROLL for (uint row = 0; row < ROWS; row++) {
            const uint last = shared->last[row];
            const bool is_seen = token >= from && token < to && start + token <= last
                && (window == 0 || start + token + window > last);
            scores[row * EACH + i] = is_seen ? scores[row * EACH + i] : LOWEST;
        }
    }
}

// Queries of this block into local memory; rows beyond the last one hold zeros.
INLINE void prepare(
    __local Shared *shared, const __global QUERY *q, uint heads, uint group, uint kv_head,
    uint first_row, uint rows, uint position)
{
    for (uint i = get_local_id(0); i < ROWS * (DIM / 8); i += WIDTH) {
        const uint row = first_row + i / (DIM / 8);
        const uint head = row / group * heads + kv_head * group + row % group;
        const __global QUERY *from = q + (ulong)head * DIM + i % (DIM / 8) * 8;
        shared->queries[i] = row < rows ? load_query8(from) : (VECTOR8)(0);
    }
    for (uint row = get_local_id(0); row < ROWS; row += WIDTH) {
        shared->last[row] = position + min(first_row + row, rows - 1) / group;
        shared->maximum[row] = LOWEST;
    }
    BARRIER;
}

// Adds up the teams' outputs and writes the split's result. The place of the p is large enough:
// DIM is at most CHUNK_TOKENS.
INLINE void finish(
    __local Shared *shared, Running *running, __global float *partial, __global float2 *state,
    uint heads, uint group, uint kv_head, uint first_row, uint rows)
{
    const uint item = get_local_id(0);
    __local float4 *merged = (__local float4 *)shared->p;
    const float sum = reduce_rows(shared, running->sum, true);
    BARRIER;
    for (uint team = 0; team < TEAMS; team++) {
        if (item / SLICES == team) {
            UNROLL for (uint row = 0; row < ROWS; row++) {
                __local float4 *at = merged + row * SLICES + item % SLICES;
                *at = team == 0 ? running->out[row] : *at + running->out[row];
            }
        }
        BARRIER;
    }
    for (uint i = item; i < ROWS * SLICES; i += WIDTH) {
        const uint row = first_row + i / SLICES;
        const uint head = row / group * heads + kv_head * group + row % group;
        if (row < rows) {
            vstore4(merged[i], i % SLICES, partial + (ulong)head * DIM);
        }
    }
    const uint row = first_row + item;
    if (item < ROWS && row < rows) {
        const uint head = row / group * heads + kv_head * group + row % group;
        state[head] = (float2)(shared->maximum[item], sum);
    }
}

__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void mz_attention_stream(
    const __global QUERY *q, const __global Entry *table, __global float *partial,
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
    prepare(&shared, q, heads, group, kv_head, first_row, rows, position);

    Running running;
    UNROLL for (uint row = 0; row < ROWS; row++) {
        running.sum[row] = 0.0f;
        running.out[row] = (float4)(0.0f);
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
        const __global half *keys[EACH];
        UNROLL for (uint i = 0; i < EACH; i++) {
            // Rows outside are not read, because a chunk's tail may hold anything.
            const uint token = (uint)get_local_id(0) + i * WIDTH;
            keys[i] = k + clamp(token, from, to - 1) * DIM;
        }
        float scores[ROWS * EACH];
        UNROLL for (uint i = 0; i < ROWS * EACH; i++) {
            scores[i] = 0.0f;
        }
        add_scores(scores, keys, shared.queries);
        cap_and_mask(&shared, scores, softcap, is_masked, window, start, from, to);
        soften(&shared, &running, scores);
        add_values(&shared, &running, v, from, to);
        // The p have been read. Without a barrier here PoCL 3.1 lets one item's branch above decide
        // for all.
        BARRIER;
    }
    const ulong offset = (ulong)split * queries * heads;
    finish(&shared, &running, partial + offset * DIM, state + offset, heads, group, kv_head,
        first_row, rows);
}
