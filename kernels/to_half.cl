// Single to half precision, to the nearest, ties to even: queries for the kernels built with
// MZ_HALF. A kernel of its own, because some compilers crash on attention over mixed types.
//
// mz_to_half
//     x           float [8 x count]
//     y           half [8 x count], output
//     Global: count; any work-group.

__kernel void mz_to_half(const __global float *x, __global half *y)
{
    const size_t i = get_global_id(0);
    vstorea_half8_rte(vload8(i, x), i, y);
}
