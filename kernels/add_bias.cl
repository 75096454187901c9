// Adds a bias to each token's values.
//
// mz_add_bias
//     x           float [tokens][values], input and output
//     unit, offset  bytes of the weight window, and where in them the F32 biases [values] start
//     Global: (values, tokens); any work-group.

__kernel void mz_add_bias(__global float *x, const __global uchar *unit, ulong offset)
{
    const __global float *bias = (const __global float *)(unit + offset);
    x[get_global_id(1) * get_global_size(0) + get_global_id(0)] += bias[get_global_id(0)];
}
