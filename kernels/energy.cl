// How much the queries of a batch use each channel of K: the sum of the squares of the query values
// that meet it, over all tokens and all heads that read the channel's K.
//
// Build option: MZ_HEAD_DIM, a multiple of 8.
//
// mz_energy
//     q           [tokens][heads][HEAD_DIM] halves or floats, as mz_heads leaves them
//     energy      float, output; [kv_heads][HEAD_DIM] of it from `first` on
//     first
//     heads, kv_heads, tokens
//     factor      of each sum, which takes the scale of queries out again
//     is_half     whether q are halves
//     Work-group: ENERGY_WIDTH. Global: ENERGY_WIDTH x (kv_heads HEAD_DIM / ENERGY_CHANNELS).

#define DIM MZ_HEAD_DIM
#define ENERGY_WIDTH 256
#define ENERGY_CHANNELS 8

__kernel __attribute__((reqd_work_group_size(ENERGY_WIDTH, 1, 1))) void mz_energy(
    const __global uchar *q, __global float *energy, uint first, uint heads, uint kv_heads,
    uint tokens, float factor, uint is_half)
{
    __local float lanes[ENERGY_WIDTH];
    const uint item = get_local_id(0);
    const uint channel = get_group_id(0) * ENERGY_CHANNELS + item % ENERGY_CHANNELS;
    // Neighbours take the channels of one head, every eighth item the next head or token.
    const uint sharing = heads / kv_heads;
    const uint first_head = channel / DIM * sharing;
    float sum = 0.0f;
    for (uint row = item / ENERGY_CHANNELS; row < tokens * sharing;
         row += ENERGY_WIDTH / ENERGY_CHANNELS) {
        const uint head = first_head + row % sharing;
        const ulong place = ((ulong)(row / sharing) * heads + head) * DIM + channel % DIM;
        const float value = is_half ? vload_half(place, (const __global half *)q)
                                    : ((const __global float *)q)[place];
        sum = mad(value, value, sum);
    }
    lanes[item] = sum;
    BARRIER;
    for (uint step = ENERGY_WIDTH / 2; step >= ENERGY_CHANNELS; step /= 2) {
        if (item < step) {
            lanes[item] += lanes[item + step];
        }
        BARRIER;
    }
    if (item < ENERGY_CHANNELS) {
        energy[first + channel] = factor * lanes[item];
    }
}
