// Adds up the splits of mz_attention_stream: y = sum of 2^(m_s - m) out_s / sum of 2^(m_s - m) l_s,
// where m is the largest of the splits' maxima m_s and l_s are their sums.
//
// Build option: MZ_HEAD_DIM as for attention_stream.cl.
//
// mz_attention_combine
//     partial     float [splits][rows][HEAD_DIM], as written by mz_attention_stream
//     state       float2 [splits][rows]
//     y           float [rows][HEAD_DIM], output; rows = queries x heads
//     rows, splits  splits at most COMBINE_SPLITS_MAX
//     Work-group: COMBINE_WIDTH. Global: COMBINE_WIDTH x rows.

#define DIM MZ_HEAD_DIM
#define COMBINE_WIDTH 256
#define COMBINE_SPLITS_MAX 1024
#define SLICES (DIM / 4)
#define TEAMS (COMBINE_WIDTH / SLICES)

// The maximum of one value of each item, for all items.
INLINE float max_group(__local float *lanes, float value)
{
    const uint item = get_local_id(0);
    lanes[item] = value;
    BARRIER;
    for (uint step = COMBINE_WIDTH / 2; step > 0; step /= 2) {
        if (item < step) {
            lanes[item] = fmax(lanes[item], lanes[item + step]);
        }
        BARRIER;
    }
    const float maximum = lanes[0];
    BARRIER;
    return maximum;
}

__kernel __attribute__((reqd_work_group_size(COMBINE_WIDTH, 1, 1))) void mz_attention_combine(
    const __global float *partial, const __global float2 *state, __global float *y, uint rows,
    uint splits)
{
    __local float weights[COMBINE_SPLITS_MAX];
    __local float lanes[COMBINE_WIDTH];
    __local float4 merged[COMBINE_WIDTH];
    const uint item = get_local_id(0);
    const uint row = get_group_id(0);

    float maximum = LOWEST;
    for (uint split = item; split < splits; split += COMBINE_WIDTH) {
        maximum = fmax(maximum, state[(ulong)split * rows + row].x);
    }
    maximum = max_group(lanes, maximum);
    float sum = 0.0f;
    for (uint split = item; split < splits; split += COMBINE_WIDTH) {
        const float2 one = state[(ulong)split * rows + row];
        // A split that saw nothing wrote no output.
        const float weight = one.y > 0.0f ? native_exp2(one.x - maximum) : 0.0f;
        weights[split] = weight;
        sum += weight * one.y;
    }
    sum = sum_group(lanes, sum, COMBINE_WIDTH);

    float4 out = (float4)(0.0f);
    if (item < TEAMS * SLICES) {
        const __global float *slice = partial + (ulong)row * DIM + item % SLICES * 4;
#pragma unroll 4
        for (uint split = item / SLICES; split < splits; split += TEAMS) {
            const float weight = weights[split];
            if (weight > 0.0f) {
                out += weight * *(const __global float4 *)(slice + (ulong)split * rows * DIM);
            }
        }
    }
    merged[item] = out;
    BARRIER;
    if (item < SLICES) {
        for (uint team = 1; team < TEAMS; team++) {
            out += merged[team * SLICES + item];
        }
        *(__global float4 *)(y + (ulong)row * DIM + item * 4) = out / sum;
    }
}
