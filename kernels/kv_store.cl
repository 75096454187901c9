// Writes new tokens' keys, rotated, and values into the chunks of a layer, as halves rounded to the
// nearest, ties to even.
//
// mz_kv_store
//     k, v        float [tokens][kv_heads][HEAD_DIM]
//     table       Entry [chunks]; the chunks of the new tokens are read from it
//     kv_heads
//     position    of the first token
//     Build option: MZ_HEAD_DIM, a multiple of 8.
//     Global: (HEAD_DIM / 8, kv_heads, tokens); any work-group.

#define DIM MZ_HEAD_DIM

__kernel void mz_kv_store(
    const __global float *k, const __global float *v, const __global Entry *table, uint kv_heads,
    uint position POOL_PARAMETER)
{
    const uint slice = get_global_id(0);
    const uint head = get_global_id(1);
    const uint token = get_global_id(2);
    const uint place = position + token;
    const ulong from = ((ulong)token * kv_heads + head) * (DIM / 8) + slice;
    __global half *keys = CHUNK(table, place / CHUNK_TOKENS);
    __global half *values = keys + kv_heads * (CHUNK_TOKENS * DIM);
    const uint to = (head * CHUNK_TOKENS + place % CHUNK_TOKENS) * (DIM / 8) + slice;
    vstorea_half8_rte(vload8(from, k), to, keys);
    vstorea_half8_rte(vload8(from, v), to, values);
}
