// y = W x for 1 to 16 tokens: every weight is read once, where it lies in the weight window.
//
//     item (team, lane):  rows 4 team to 4 team + 3 of the group's 16, pieces lane, lane + 16, ...
//     group:              sums over the 16 lanes of a team, through local memory
//
// A lane multiplies a piece (8 weights of each of its rows) with the same piece of all tokens, so a
// weight is used TOKENS times and an x is used 4 times a load.
//
// With a norm, x / sqrt(mean(x^2) + epsilon) x norm is multiplied in place of x. Weights take the
// norm's factor when they are loaded and sums the root's when they are whole, so that x is read as
// it is; that costs each group a second look at x, and saves a command.
//
// Build options: MZ_WEIGHTS; MZ_TOKENS, 1 to 16.
//
// mz_matmul_few
//     PRODUCT_PARAMETERS, see rows.cl; TOKENS tokens
//     norm        where in the weight window the norm's F32 weights [columns] start, or NOWHERE
//     epsilon
//     Work-group: FEW_WIDTH. Global: FEW_WIDTH x (rows of the launch / FEW_ROWS, rounded up).

#define TOKENS MZ_TOKENS
#define FEW_WIDTH 64
#define LANES 16
#define TEAMS (FEW_WIDTH / LANES)
// Rows of one item, and of a work-group.
#define ITEM_ROWS 4
#define FEW_ROWS (TEAMS * ITEM_ROWS)
#define ITEM_SUMS (TOKENS * ITEM_ROWS)
// One more, against bank conflicts.
#define PITCH (FEW_WIDTH + 1)

// Each item's share of every token's sum of squares.
INLINE void sum_squares(const __global float *x, uint columns, __local float *squares)
{
    for (uint token = 0; token < TOKENS; token++) {
        const __global float8 *from = (const __global float8 *)(x + (ulong)token * columns);
        float sum = 0.0f;
        for (uint piece = get_local_id(0); piece < columns / 8; piece += FEW_WIDTH) {
            sum = dot8(from[piece], from[piece], sum);
        }
        squares[token * PITCH + get_local_id(0)] = sum;
    }
}

// The sum of the values of one team's items.
INLINE float sum_team(const __local float *shared, uint team)
{
    float total = 0.0f;
    UNROLL for (uint lane = 0; lane < LANES; lane++) {
        total += shared[team * LANES + lane];
    }
    return total;
}

// The same of all teams.
INLINE float sum_teams(const __local float *teams)
{
    return teams[0] + teams[1] + teams[2] + teams[3];
}

__kernel __attribute__((reqd_work_group_size(FEW_WIDTH, 1, 1))) void mz_matmul_few(
    PRODUCT_PARAMETERS, ulong norm, float epsilon)
{
    __local float shared[ITEM_SUMS * PITCH];
    __local float squares[TOKENS * PITCH];
    __local float team_squares[TOKENS * TEAMS];
    const Matrices all = MATRICES;
    const uint item = get_local_id(0);
    const uint first_row = get_group_id(0) * FEW_ROWS;
    const __global uchar *weights[ITEM_ROWS];
    UNROLL for (uint r = 0; r < ITEM_ROWS; r++) {
        weights[r] = row_weights(all, first_row + item / LANES * ITEM_ROWS + r, columns);
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
        if (norm != NOWHERE) {
            const float8 factors = vload8(piece, (const __global float *)(unit + norm));
            UNROLL for (uint r = 0; r < ITEM_ROWS; r++) {
                w[r] *= factors;
            }
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
    if (norm != NOWHERE) {
        sum_squares(x, columns, squares);
    }
    BARRIER;
    if (norm != NOWHERE && item < TOKENS * TEAMS) {
        team_squares[item] = sum_team(squares + item / TEAMS * PITCH, item % TEAMS);
    }
    BARRIER;
    // Rows of an item that end in an output of their own, and outputs of a token.
    const uint item_outputs = finish == FINISH_PAIR ? ITEM_ROWS / 2 : ITEM_ROWS;
    const uint outputs = item_outputs * TEAMS;
    for (uint i = item; i < TOKENS * outputs; i += FEW_WIDTH) {
        const uint token = i / outputs;
        const uint team = i % outputs / item_outputs;
        const uint r = i % item_outputs;
        float factor = 1.0f;
        if (norm != NOWHERE) {
            const float sum = sum_teams(team_squares + token * TEAMS);
            factor = 1.0f / sqrt(sum / (float)columns + epsilon);
        }
        const __local float *from = shared + (token * ITEM_ROWS + r) * PITCH;
        const float sum = sum_team(from, team) * factor;
        __global float *to = y + (ulong)token * pitch + first;
        const uint row = first_row + team * ITEM_ROWS + r;
        if (finish == FINISH_PAIR) {
            finish_pair(all, to, row, sum, sum_team(from + 2 * PITCH, team) * factor);
        } else {
            finish_row(all, to, row, sum);
        }
    }
}
