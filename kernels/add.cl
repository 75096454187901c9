// x += y: a residual connection.
//
// mz_add
//     x           float [count], input and output
//     y           float [count]
//     Global: count; any work-group.

__kernel void mz_add(__global float *x, const __global float *y)
{
    const size_t i = get_global_id(0);
    x[i] += y[i];
}
