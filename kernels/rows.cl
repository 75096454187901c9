// Which rows a matrix product computes, and what becomes of their sums. It is put after weights.cl
// and before the products.
//
// A product takes up to three matrices of one weight window, one format and one number of columns,
// and multiplies them with the same x. Their rows, one matrix after the other, are the rows of the
// launch: queries, keys and values cost one command. What row i of a token comes to goes to
// y[token][first + i]:
//
//     finish    y becomes
//     STORE     sum
//     ADD       y + sum, a residual connection
//     GATE      silu(y) x sum, where silu(x) = x / (1 + exp(-x))
//     PAIR      silu(sum of row i of matrix 0) x (sum of row i of matrix 1)
//
// A sum includes the row's bias where its matrix has one. Rows of a PAIR alternate, two of matrix 0
// and two of matrix 1, so that both sums of an output meet in one work-group.
//
// Parameters of every product, PRODUCT_PARAMETERS:
//     x           float [tokens][columns]
//     columns     a multiple of 8, or of the block's values for formats with blocks
//     unit        bytes of the weight window
//     weights0, bias0, rows0   where in it W [rows][columns] and its F32 biases [rows] start, or
//                 NOWHERE; the same for matrices 1 and 2, which have no rows if they are absent
//     y           float [tokens][pitch], output
//     first, pitch, finish

#define NOWHERE 0xffffffffffffffffUL

#define FINISH_STORE 0
#define FINISH_ADD 1
#define FINISH_GATE 2
#define FINISH_PAIR 3

#define PRODUCT_PARAMETERS \
    const __global float *x, uint columns, const __global uchar *unit, ulong weights0, \
        ulong bias0, uint rows0, ulong weights1, ulong bias1, uint rows1, ulong weights2, \
        ulong bias2, uint rows2, __global float *y, uint first, uint pitch, uint finish

// The matrices among the parameters.
typedef struct {
    const __global uchar *unit;
    ulong weights0, weights1, weights2;
    ulong bias0, bias1, bias2;
    uint rows0, rows1, rows2;
    uint finish;
} Matrices;

#define MATRICES \
    {unit, weights0, weights1, weights2, bias0, bias1, bias2, rows0, rows1, rows2, finish}

// One row of the launch: its matrix, and its place in it.
typedef struct {
    ulong weights;
    ulong bias;
    uint row;
} Row;

INLINE Row find_row(Matrices all, uint i)
{
    Row found = {all.weights0, all.bias0, i};
    if (all.finish == FINISH_PAIR) {
        found.row = i / 4 * 2 + i % 2;
        if (i % 4 >= 2) {
            found.weights = all.weights1;
            found.bias = all.bias1;
        }
    } else if (i >= all.rows0 + all.rows1) {
        found.weights = all.weights2;
        found.bias = all.bias2;
        found.row = i - all.rows0 - all.rows1;
    } else if (i >= all.rows0) {
        found.weights = all.weights1;
        found.bias = all.bias1;
        found.row = i - all.rows0;
    }
    return found;
}

// Outputs of a token.
INLINE uint output_count(Matrices all)
{
    return all.finish == FINISH_PAIR ? all.rows0 : all.rows0 + all.rows1 + all.rows2;
}

// The weights of a row; beyond the last row, those of a row that is there.
INLINE const __global uchar *row_weights(Matrices all, uint i, uint columns)
{
    Row found;
    if (all.finish == FINISH_PAIR) {
        found = find_row(all, i);
        found.row = min(found.row, all.rows0 - 1);
    } else {
        found = find_row(all, min(i, output_count(all) - 1));
    }
    return all.unit + found.weights + found.row * ROW_BYTES(columns);
}

INLINE float add_bias(Matrices all, uint i, float sum)
{
    const Row found = find_row(all, i);
    if (found.bias == NOWHERE) {
        return sum;
    }
    return sum + ((const __global float *)(all.unit + found.bias))[found.row];
}

INLINE float silu(float value)
{
    return value / (1.0f + exp(-value));
}

// Finishes row i, whose token's outputs start at y.
INLINE void finish_row(Matrices all, __global float *y, uint i, float sum)
{
    if (i < output_count(all)) {
        sum = add_bias(all, i, sum);
        if (all.finish == FINISH_ADD) {
            sum += y[i];
        } else if (all.finish == FINISH_GATE) {
            sum *= silu(y[i]);
        }
        y[i] = sum;
    }
}

// Finishes rows i and i + 2 of a PAIR, i being one of matrix 0.
INLINE void finish_pair(Matrices all, __global float *y, uint i, float gate, float up)
{
    const uint output = find_row(all, i).row;
    if (output < all.rows0) {
        y[output] = silu(add_bias(all, i, gate)) * add_bias(all, i + 2, up);
    }
}
