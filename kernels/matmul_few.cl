// y = W x for 1 to 16 tokens: every weight is read once, where it lies in the weight window.
//
//     item (team, lane):  rows 4 team to 4 team + 3 of the group's 16, pieces lane, lane + 16, ...
//     group:              sums over the 16 lanes of a team, through local memory
//
// A lane multiplies a piece (8 weights of each of its rows) with the same piece of all tokens, so a
// weight is used TOKENS times and an x is used 4 times a load.
//
// Build options: MZ_WEIGHTS; MZ_TOKENS, 1 to 16.
//
// mz_matmul_few
//     x           float [TOKENS][columns]
//     unit, offset  bytes of the weight window, and where in them W [rows][columns] starts
//     y           float [TOKENS][rows], output
//     rows, columns  columns is a multiple of 8, or of 32 for formats with blocks
//     Work-group: FEW_WIDTH. Global: FEW_WIDTH x (rows / FEW_ROWS, rounded up).

#define TOKENS MZ_TOKENS
#define FEW_WIDTH 64
#define LANES 16
// Rows of one item, and of a work-group.
#define ITEM_ROWS 4
#define FEW_ROWS (FEW_WIDTH / LANES * ITEM_ROWS)
#define ITEM_SUMS (TOKENS * ITEM_ROWS)
// One more, against bank conflicts.
#define PITCH (FEW_WIDTH + 1)

__kernel __attribute__((reqd_work_group_size(FEW_WIDTH, 1, 1))) void mz_matmul_few(
    const __global float *x, const __global uchar *unit, ulong offset, __global float *y, uint rows,
    uint columns)
{
    __local float shared[ITEM_SUMS * PITCH];
    const uint item = get_local_id(0);
    const uint first_row = get_group_id(0) * FEW_ROWS;
    const __global uchar *weights[ITEM_ROWS];
    UNROLL for (uint r = 0; r < ITEM_ROWS; r++) {
        const uint row = min(first_row + item / LANES * ITEM_ROWS + r, rows - 1);
        weights[r] = unit + offset + row * ROW_BYTES(columns);
    }
    float sums[ITEM_SUMS];
    UNROLL for (uint i = 0; i < ITEM_SUMS; i++) {
        sums[i] = 0.0f;
    }
    for (uint piece = item % LANES; piece < columns / 8; piece += LANES) {
        float8 w[ITEM_ROWS];
        UNROLL for (uint r = 0; r < ITEM_ROWS; r++) {
            w[r] = load_weights8(weights[r], piece);
        }
        UNROLL for (uint token = 0; token < TOKENS; token++) {
            const __global float *from = x + (ulong)token * columns + piece * 8;
            const float8 values = *(const __global float8 *)from;
            UNROLL for (uint r = 0; r < ITEM_ROWS; r++) {
                const uint i = token * ITEM_ROWS + r;
                sums[i] = dot8(w[r], values, sums[i]);
            }
        }
    }
    UNROLL for (uint i = 0; i < ITEM_SUMS; i++) {
        shared[i * PITCH + item] = sums[i];
    }
    BARRIER;
    for (uint i = item; i < TOKENS * FEW_ROWS; i += FEW_WIDTH) {
        const uint sum = i % ITEM_SUMS;
        const uint team = i / ITEM_SUMS;
        float total = 0.0f;
        UNROLL for (uint lane = 0; lane < LANES; lane++) {
            total += shared[sum * PITCH + team * LANES + lane];
        }
        const uint row = first_row + team * ITEM_ROWS + sum % ITEM_ROWS;
        if (row < rows) {
            y[(ulong)(sum / ITEM_ROWS) * rows + row] = total;
        }
    }
}
