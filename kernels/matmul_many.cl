// y = W x for many tokens: tiles of W and x are widened into local memory and used by the whole
// work-group. An item computes 4 rows of 4 tokens.
//
// Build option: MZ_WEIGHTS.
//
// mz_matmul_many
//     PRODUCT_PARAMETERS, see rows.cl
//     tokens
//     Work-group: MANY_WIDTH. Global: (MANY_WIDTH x (rows of the launch / MANY_ROWS), tokens /
//     MANY_TOKENS), both rounded up.

#define MANY_ROWS 64
#define MANY_TOKENS 32
#define MANY_WIDTH (MANY_ROWS / 4 * (MANY_TOKENS / 4))
// Columns of one step, in pieces of 8 and in all.
#define PIECES 4
#define STEP (8 * PIECES)

// Widens one piece of one row into a tile that lies column by column.
INLINE void place(__local float4 *tile, uint pitch, uint piece, uint row, float8 values)
{
    __local float *to = (__local float *)tile + piece * 8 * pitch + row;
    to[0 * pitch] = values.s0;
    to[1 * pitch] = values.s1;
    to[2 * pitch] = values.s2;
    to[3 * pitch] = values.s3;
    to[4 * pitch] = values.s4;
    to[5 * pitch] = values.s5;
    to[6 * pitch] = values.s6;
    to[7 * pitch] = values.s7;
}

__kernel __attribute__((reqd_work_group_size(MANY_WIDTH, 1, 1))) void mz_matmul_many(
    PRODUCT_PARAMETERS, uint tokens)
{
    __local float4 w_tile[STEP * MANY_ROWS / 4];
    __local float4 x_tile[STEP * MANY_TOKENS / 4];
    const Matrices all = MATRICES;
    const uint item = get_local_id(0);
    const uint first_row = get_group_id(0) * MANY_ROWS;
    const uint first_token = get_group_id(1) * MANY_TOKENS;
    const uint item_row = item % (MANY_ROWS / 4);
    const uint item_token = item / (MANY_ROWS / 4);
    // Every step loads weights of the same row.
    const __global uchar *weights = row_weights(all, first_row + item % MANY_ROWS, columns);
    float4 sums[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};
    for (uint start = 0; start < columns / 8; start += PIECES) {
        for (uint i = item; i < MANY_ROWS * PIECES; i += MANY_WIDTH) {
            const uint piece = start + i / MANY_ROWS;
            float8 values = (float8)(0.0f);
            if (piece < columns / 8) {
                values = load_weights8(weights, piece);
            }
            place(w_tile, MANY_ROWS, i / MANY_ROWS, i % MANY_ROWS, values);
        }
        for (uint i = item; i < MANY_TOKENS * PIECES; i += MANY_WIDTH) {
            const uint piece = start + i / MANY_TOKENS;
            const uint token = min(first_token + i % MANY_TOKENS, tokens - 1);
            float8 values = (float8)(0.0f);
            if (piece < columns / 8) {
                values = vload8(piece, x + (ulong)token * columns);
            }
            place(x_tile, MANY_TOKENS, i / MANY_TOKENS, i % MANY_TOKENS, values);
        }
        BARRIER;
        UNROLL for (uint column = 0; column < STEP; column++) {
            const float4 w = w_tile[column * (MANY_ROWS / 4) + item_row];
            const float4 values = x_tile[column * (MANY_TOKENS / 4) + item_token];
            sums[0] = mad(w, (float4)(values.x), sums[0]);
            sums[1] = mad(w, (float4)(values.y), sums[1]);
            sums[2] = mad(w, (float4)(values.z), sums[2]);
            sums[3] = mad(w, (float4)(values.w), sums[3]);
        }
        BARRIER;
    }
    for (uint i = 0; i < 4; i++) {
        const uint token = first_token + item_token * 4 + i;
        const uint row = first_row + item_row * 4;
        if (token < tokens) {
            __global float *to = y + (ulong)token * pitch + first;
            const float4 sum = i == 0 ? sums[0] : i == 1 ? sums[1] : i == 2 ? sums[2] : sums[3];
            if (finish == FINISH_PAIR) {
                finish_pair(all, to, row + 0, sum.x, sum.z);
                finish_pair(all, to, row + 1, sum.y, sum.w);
            } else {
                finish_row(all, to, row + 0, sum.x);
                finish_row(all, to, row + 1, sum.y);
                finish_row(all, to, row + 2, sum.z);
                finish_row(all, to, row + 3, sum.w);
            }
        }
    }
}
