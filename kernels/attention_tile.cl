// Attention of many queries over all chunks of a layer, for long prompts: tiles of K, then of V,
// are staged in local memory and used by all rows of a work-group. attention_stream.cl is the body
// for few queries; which one to take depends on the number of queries alone.
//
// A work-group takes one KV head and ROWS rows; a row is one query of one query head of the KV
// head's group. Item (y, x) of (ROWS / 4, 16):
//
//     for each tile of KEYS tokens:
//         stage K;  scores of rows 4 y to 4 y + 3 and keys x, x + 16, ...
//         group:    maximum of each row, factor = exp2(old - new)
//         stage V;  p = exp2(score - maximum) into local memory, sums of p
//         out[row][slice] = out[row][slice] factor + sum of p V, slices x, x + 16, ... of 4 values
//
// Build options: MZ_HEAD_DIM, a multiple of 8 from 32 to 256; MZ_ROWS, 16 or 32.
//
// mz_attention_tile
//     q           QUERY [queries][heads][HEAD_DIM], multiplied by the attention scale already
//     table       Entry [chunks]; read up to the chunk of the last query
//     y           float [queries][heads][HEAD_DIM], output
//     heads, kv_heads, queries, position, window, softcap   as for mz_attention_stream
//     Work-group: 4 ROWS. Global: (4 ROWS x blocks, kv_heads), blocks = rows / ROWS rounded up,
//     rows = queries x heads / kv_heads. Chunks that no query sees are not read.

#define DIM MZ_HEAD_DIM
#define ROWS MZ_ROWS
#define ACROSS 16
#define WIDTH (ROWS / 4 * ACROSS)
#define KEYS 32
#define EACH (KEYS / ACROSS)
// Slices of 4 values, all of them and those of one item.
#define SLICES (DIM / 4)
#define ITEM_SLICES ((SLICES + ACROSS - 1) / ACROSS)
// Vectors of 8 halves from one staged token to the next; the odd one avoids bank conflicts.
#define PITCH (DIM / 8 + 1)

typedef struct {
    VECTOR8 queries[ROWS * (DIM / 8)];
    uint4 tile[KEYS * PITCH];
    // p of four rows side by side, token by token.
    float4 p[KEYS * (ROWS / 4)];
    float lanes[ROWS * ACROSS];
    float maximum[ROWS];
    float factor[ROWS];
    uint last[ROWS];
} Shared;

// Copies rows of halves of tokens below `count`; the others are not read, and hold zeros.
INLINE void stage(__local Shared *shared, const __global half *from, uint count)
{
    for (uint i = get_local_id(0); i < KEYS * (DIM / 8); i += WIDTH) {
        const uint token = i / (DIM / 8);
        const uint vector = i % (DIM / 8);
        uint4 raw = (uint4)(0);
        if (token < count) {
            raw = ((const __global uint4 *)from)[i];
        }
        shared->tile[token * PITCH + vector] = raw;
    }
    BARRIER;
}

// scores[row * EACH + key]: four rows of this item and its keys.
INLINE void score_tile(const __local Shared *shared, float *scores)
{
    const uint x = get_local_id(0) % ACROSS;
    const __local VECTOR8 *queries = shared->queries + get_local_id(0) / ACROSS * 4 * (DIM / 8);
    for (uint d = 0; d < DIM / 8; d++) {
        VECTOR8 k[EACH];
        UNROLL for (uint i = 0; i < EACH; i++) {
            k[i] = load_staged8(shared->tile + (x + i * ACROSS) * PITCH + d);
        }
        UNROLL for (uint row = 0; row < 4; row++) {
            const VECTOR8 q = queries[row * (DIM / 8) + d];
            UNROLL for (uint i = 0; i < EACH; i++) {
#ifdef MZ_HALF
                const float8 wide = convert_float8(q * k[i]);
                const float4 four = wide.lo + wide.hi;
                scores[row * EACH + i] += four.x + four.y + (four.z + four.w);
#else
                scores[row * EACH + i] = dot8(q, k[i], scores[row * EACH + i]);
#endif
            }
        }
    }
}

// Soft-cap, masks and the running maxima; `start` is the position of the tile's first token.
INLINE void soften(
    __local Shared *shared, float *scores, float softcap, uint window, uint start)
{
    const uint item = get_local_id(0);
    UNROLL for (uint row = 0; row < 4; row++) {
        const uint last = shared->last[item / ACROSS * 4 + row];
        float highest = LOWEST;
        UNROLL for (uint i = 0; i < EACH; i++) {
            const uint token = start + item % ACROSS + i * ACROSS;
            const bool is_seen = token <= last && (window == 0 || token + window > last);
            const float score = cap_score(scores[row * EACH + i], softcap);
            scores[row * EACH + i] = is_seen ? score : LOWEST;
            highest = fmax(highest, scores[row * EACH + i]);
        }
        shared->lanes[(item / ACROSS * 4 + row) * ACROSS + item % ACROSS] = highest;
    }
    BARRIER;
    if (item < ROWS) {
        const float before = shared->maximum[item];
        float after = before;
        UNROLL for (uint i = 0; i < ACROSS; i++) {
            after = fmax(after, shared->lanes[item * ACROSS + i]);
        }
        shared->maximum[item] = after;
        shared->factor[item] = native_exp2(before - after);
    }
    BARRIER;
}

// Scores to p in local memory, and the change of maximum to what was summed up before.
INLINE void weigh(__local Shared *shared, const float *scores, float *sum, float4 *out)
{
    const uint item = get_local_id(0);
    float p[4 * EACH];
    UNROLL for (uint row = 0; row < 4; row++) {
        const float top = shared->maximum[item / ACROSS * 4 + row];
        const float factor = shared->factor[item / ACROSS * 4 + row];
        sum[row] *= factor;
        UNROLL for (uint i = 0; i < EACH; i++) {
            const float score = scores[row * EACH + i];
            p[row * EACH + i] = score > LOWEST ? native_exp2(score - top) : 0.0f;
            sum[row] += p[row * EACH + i];
        }
        UNROLL for (uint i = 0; i < ITEM_SLICES; i++) {
            out[row * ITEM_SLICES + i] *= factor;
        }
    }
    UNROLL for (uint i = 0; i < EACH; i++) {
        const uint token = item % ACROSS + i * ACROSS;
        shared->p[token * (ROWS / 4) + item / ACROSS] =
            (float4)(p[i], p[EACH + i], p[2 * EACH + i], p[3 * EACH + i]);
    }
}

// Adds the staged values, weighted.
INLINE void add_tile(const __local Shared *shared, float4 *out)
{
    const uint y = get_local_id(0) / ACROSS;
    const uint x = get_local_id(0) % ACROSS;
    for (uint token = 0; token < KEYS; token++) {
        const float4 p = shared->p[token * (ROWS / 4) + y];
        const __local uint2 *row = (const __local uint2 *)(shared->tile + token * PITCH);
        UNROLL for (uint i = 0; i < ITEM_SLICES; i++) {
            // Beyond the last slice lies the padding, whose sums are not stored.
            const uint slice = min(x + i * ACROSS, (uint)SLICES);
            const float4 value = load_staged4(row + slice);
            out[0 * ITEM_SLICES + i] = mad(value, (float4)(p.x), out[0 * ITEM_SLICES + i]);
            out[1 * ITEM_SLICES + i] = mad(value, (float4)(p.y), out[1 * ITEM_SLICES + i]);
            out[2 * ITEM_SLICES + i] = mad(value, (float4)(p.z), out[2 * ITEM_SLICES + i]);
            out[3 * ITEM_SLICES + i] = mad(value, (float4)(p.w), out[3 * ITEM_SLICES + i]);
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
    for (uint token = get_local_id(0); token < KEYS; token += WIDTH) {
        shared->tile[token * PITCH + DIM / 8] = (uint4)(0);
    }
    BARRIER;
}

// Divides by the sums over all items of a row and stores.
INLINE void finish(
    __local Shared *shared, const float *sum, const float4 *out, __global float *y, uint heads,
    uint group, uint kv_head, uint first_row, uint rows)
{
    const uint item = get_local_id(0);
    UNROLL for (uint row = 0; row < 4; row++) {
        shared->lanes[(item / ACROSS * 4 + row) * ACROSS + item % ACROSS] = sum[row];
    }
    BARRIER;
    UNROLL for (uint r = 0; r < 4; r++) {
        float total = 0.0f;
        UNROLL for (uint i = 0; i < ACROSS; i++) {
            total += shared->lanes[(item / ACROSS * 4 + r) * ACROSS + i];
        }
        const uint row = first_row + item / ACROSS * 4 + r;
        const uint head = row / group * heads + kv_head * group + row % group;
        UNROLL for (uint i = 0; i < ITEM_SLICES; i++) {
            const uint slice = item % ACROSS + i * ACROSS;
            if (row < rows && slice < SLICES) {
                vstore4(out[r * ITEM_SLICES + i] / total, slice, y + (ulong)head * DIM);
            }
        }
    }
}

__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void mz_attention_tile(
    const __global QUERY *q, const __global Entry *table, __global float *y, uint heads,
    uint kv_heads, uint queries, uint position, uint window, float softcap POOL_PARAMETER)
{
    __local Shared shared;
    const uint group = heads / kv_heads;
    const uint rows = queries * group;
    const uint first_row = get_group_id(0) * ROWS;
    const uint kv_head = get_group_id(1);
    prepare(&shared, q, heads, group, kv_head, first_row, rows, position);

    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float4 out[4 * ITEM_SLICES];
    UNROLL for (uint i = 0; i < 4 * ITEM_SLICES; i++) {
        out[i] = (float4)(0.0f);
    }
    const uint first = position + first_row / group;
    const uint end = position + min(first_row + ROWS - 1, rows - 1) / group + 1;
    const uint first_seen = window != 0 && first >= window ? first - window + 1 : 0;
    for (uint start = first_seen / KEYS * KEYS; start < end; start += KEYS) {
        const __global half *k = CHUNK(table, start / CHUNK_TOKENS)
            + (kv_head * CHUNK_TOKENS + start % CHUNK_TOKENS) * DIM;
        const __global half *v = k + kv_heads * (CHUNK_TOKENS * DIM);
        float scores[4 * EACH];
        UNROLL for (uint i = 0; i < 4 * EACH; i++) {
            scores[i] = 0.0f;
        }
        stage(&shared, k, end - start);
        score_tile(&shared, scores);
        soften(&shared, scores, softcap, window, start);
        weigh(&shared, scores, sum, out);
        stage(&shared, v, end - start);
        add_tile(&shared, out);
        BARRIER;
    }
    finish(&shared, sum, out, y, heads, group, kv_head, first_row, rows);
}
