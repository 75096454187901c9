// y = silu(gate) x up, where silu(x) = x / (1 + exp(-x)).
//
// mz_swiglu
//     gate, up    float [count]
//     y           float [count], output; may be gate or up
//     Global: count; any work-group.

__kernel void mz_swiglu(const __global float *gate, const __global float *up, __global float *y)
{
    const size_t i = get_global_id(0);
    const float x = gate[i];
    y[i] = x / (1.0f + exp(-x)) * up[i];
}
