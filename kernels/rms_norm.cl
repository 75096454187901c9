// y = x / sqrt(mean(x^2) + epsilon) * weight, row by row. A row is a token's residual stream, or
// one query or key head of a token where heads are normalised one by one.
//
// Build option: MZ_WIDTH, a power of two; 64 suits heads, 256 the residual stream.
//
// mz_rms_norm
//     x           float [rows][values]
//     unit, offset  bytes of the weight window, and where in them the F32 weights [values] start
//     y           float [rows][values], output; may be x
//     values, epsilon
//     Work-group: WIDTH. Global: WIDTH x rows.

#define WIDTH MZ_WIDTH

__kernel __attribute__((reqd_work_group_size(WIDTH, 1, 1))) void mz_rms_norm(
    const __global float *x, const __global uchar *unit, ulong offset, __global float *y,
    uint values, float epsilon)
{
    __local float lanes[WIDTH];
    const __global float *weights = (const __global float *)(unit + offset);
    const ulong first = (ulong)get_group_id(0) * values;
    float sum = 0.0f;
    for (uint i = get_local_id(0); i < values; i += WIDTH) {
        sum = mad(x[first + i], x[first + i], sum);
    }
    sum = sum_group(lanes, sum, WIDTH);
    const float factor = 1.0f / sqrt(sum / (float)values + epsilon);
    for (uint i = get_local_id(0); i < values; i += WIDTH) {
        y[first + i] = x[first + i] * factor * weights[i];
    }
}
