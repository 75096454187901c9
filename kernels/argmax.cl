// The index of each row's largest value, the first of equals; ARGMAX_NONE where all are NaN.
//
// mz_argmax
//     x           float [rows][values]
//     index       uint [rows], output
//     values
//     Work-group: ARGMAX_WIDTH. Global: ARGMAX_WIDTH x rows.

#define ARGMAX_WIDTH 256
#define ARGMAX_NONE 0xffffffffu

__kernel __attribute__((reqd_work_group_size(ARGMAX_WIDTH, 1, 1))) void mz_argmax(
    const __global float *x, __global uint *index, uint values)
{
    __local float largest[ARGMAX_WIDTH];
    __local uint places[ARGMAX_WIDTH];
    const uint item = get_local_id(0);
    const __global float *row = x + (ulong)get_group_id(0) * values;
    float best = 0.0f;
    uint place = ARGMAX_NONE;
    for (uint i = item; i < values; i += ARGMAX_WIDTH) {
        const float value = row[i];
        const bool is_better = place == ARGMAX_NONE ? !isnan(value) : value > best;
        best = is_better ? value : best;
        place = is_better ? i : place;
    }
    largest[item] = best;
    places[item] = place;
    BARRIER;
    for (uint step = ARGMAX_WIDTH / 2; step > 0; step /= 2) {
        if (item < step && places[item + step] != ARGMAX_NONE) {
            const float other = largest[item + step];
            const bool is_better = places[item] == ARGMAX_NONE || other > largest[item]
                || (other == largest[item] && places[item + step] < places[item]);
            if (is_better) {
                largest[item] = other;
                places[item] = places[item + step];
            }
        }
        BARRIER;
    }
    if (item == 0) {
        index[get_group_id(0)] = places[0];
    }
}
