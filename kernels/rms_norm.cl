// y = x / sqrt(mean(x^2) + epsilon) * weight, row by row, a row being a token's residual stream.
// Products of a few tokens do without (matmul_few.cl), since they read x only a few times.
//
// mz_rms_norm
//     x           float [rows][values]
//     unit, offset  bytes of the weight window, and where in them the F32 weights [values] start
//     y           float [rows][values], output; may be x
//     values, epsilon
//     Work-group: NORM_WIDTH. Global: NORM_WIDTH x rows.

#define NORM_WIDTH 256

__kernel __attribute__((reqd_work_group_size(NORM_WIDTH, 1, 1))) void mz_rms_norm(
    const __global float *x, const __global uchar *unit, ulong offset, __global float *y,
    uint values, float epsilon)
{
    __local float lanes[NORM_WIDTH];
    const __global float *weights = (const __global float *)(unit + offset);
    const ulong first = (ulong)get_group_id(0) * values;
    float sum = 0.0f;
    for (uint i = get_local_id(0); i < values; i += NORM_WIDTH) {
        sum = mad(x[first + i], x[first + i], sum);
    }
    sum = sum_group(lanes, sum, NORM_WIDTH);
    const float factor = 1.0f / sqrt(sum / (float)values + epsilon);
    for (uint i = get_local_id(0); i < values; i += NORM_WIDTH) {
        y[first + i] = x[first + i] * factor * weights[i];
    }
}
