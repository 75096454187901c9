// Rotates pairs of values of each head by position x frequency, in place, and multiplies by a
// scale: the attention scale for queries, 1 for keys.
//
// mz_rotary
//     x           float [tokens][heads][2 x pairs]
//     frequencies float [pairs], radians a token, frequency factors included
//     heads, pairs
//     position    of the first token
//     is_adjacent 1: pairs are values 2 i and 2 i + 1; 0: values i and i + pairs
//     scale
//     Global: (pairs, heads, tokens); any work-group. Build without fast relaxed math: angles reach
//     hundreds of thousands of radians.

__kernel void mz_rotary(
    __global float *x, const __global float *frequencies, uint heads, uint pairs, uint position,
    uint is_adjacent, float scale)
{
    const uint pair = get_global_id(0);
    const uint token = get_global_id(2);
    const ulong head = (ulong)token * heads + get_global_id(1);
    __global float *first = x + head * 2 * pairs + (is_adjacent ? 2 * pair : pair);
    __global float *second = first + (is_adjacent ? 1 : pairs);
    const float angle = (float)(position + token) * frequencies[pair];
    const float c = cos(angle) * scale;
    const float s = sin(angle) * scale;
    const float a = *first;
    const float b = *second;
    *first = a * c - b * s;
    *second = a * s + b * c;
}
