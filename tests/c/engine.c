// A service with an inference engine of its own, as small as one can be: each layer is one head of
// attention. It takes the library's ports for Linux, with worker threads, and has another thread
// take memory away while it computes; its answers must not change.
//
//   engine FOLDER       prints "ok TOKENS...", or what went wrong

#define _POSIX_C_SOURCE 200809L

#include "mzcache.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LAYERS = 3,
    DIM = 64,
    MATRIX = DIM * DIM,
    UNIT_BYTES = 3 * MATRIX * 4, // from the stream to query, key and value
    CONTEXT = 300,
    ANSWER = 12,
    CONTEXT_MAX = 512,
    CHUNKS_MAX = CONTEXT_MAX / MZ_CHUNK_TOKENS,
    VOCABULARY = 1000,
    ROUNDS = 4,
};

static void fail(const char *what, int result)
{
    printf("%s: %s\n", what, mz_strerror(result));
    exit(1);
}

static int must(const char *what, int result)
{
    if (result < 0)
        fail(what, result);
    return result;
}

static void check(const char *what, int holds)
{
    if (!holds) {
        printf("%s\n", what);
        exit(1);
    }
}

// What the library tells of itself goes where the service's own messages go.
static void hear(void *context, uint32_t level, const char *text, const mz_error *about)
{
    (void)level;
    atomic_fetch_add((atomic_int *)context, 1);
    fprintf(stderr, "mzcache: %s (%s, %lld)\n", text, about->what, (long long)about->value);
}

// The numbers of a model that never learned anything.
static float weight(uint32_t index)
{
    uint32_t bits = index * 2654435761u;
    bits ^= bits >> 15;
    bits *= 2246822519u;
    bits ^= bits >> 13;
    return ((float)(bits % 2001) - 1000.0f) / 4000.0f;
}

static void write_model(const char *path)
{
    FILE *file = fopen(path, "wb");
    check(path, file != NULL);
    for (uint32_t index = 0; index < LAYERS * 3 * MATRIX; index++) {
        float value = weight(index);
        check(path, fwrite(&value, sizeof value, 1, file) == 1);
    }
    check(path, fclose(file) == 0);
}

// F16 by hand, for compilers that have none. Values are small and never denormal but for zero.
static uint16_t to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 23 & 255) - 112;
    if (exponent <= 0)
        return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits >> 16 & 0x8000) | (uint32_t)exponent << 10 | (bits >> 13 & 1023));
}

static float from_half(uint16_t half)
{
    uint32_t exponent = half >> 10 & 31;
    uint32_t bits = (uint32_t)(half & 0x8000) << 16;
    if (exponent)
        bits |= (exponent + 112) << 23 | (uint32_t)(half & 1023) << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void multiply(const float *matrix, const float *in, float *out)
{
    for (int row = 0; row < DIM; row++) {
        out[row] = 0;
        for (int column = 0; column < DIM; column++)
            out[row] += matrix[row * DIM + column] * in[column];
    }
}

// Writes key and value of a token to its chunk: first all keys of the chunk, then all values.
static int write_kv(mz_handle *handle, uint32_t layer, uint32_t token, const float *k,
                    const float *v)
{
    mz_span span = {.struct_bytes = sizeof span};
    int result = mz_kv_tail(handle, layer, token, &span);
    if (result != MZ_OK)
        return result;
    uint16_t *keys = (uint16_t *)span.data + token % MZ_CHUNK_TOKENS * DIM;
    uint16_t *values = keys + MZ_CHUNK_TOKENS * DIM;
    for (int index = 0; index < DIM; index++) {
        keys[index] = to_half(k[index]);
        values[index] = to_half(v[index]);
    }
    return mz_release_tail(handle, layer, token);
}

// One pass over the tokens up to this one, with an online softmax, chunk by chunk.
static void attend(void *const *chunks, uint32_t token, const float *q, float *out)
{
    float most = -INFINITY, sum = 0;
    memset(out, 0, DIM * sizeof *out);
    for (uint32_t past = 0; past <= token; past++) {
        const uint16_t *keys = chunks[past / MZ_CHUNK_TOKENS];
        keys += past % MZ_CHUNK_TOKENS * DIM;
        const uint16_t *values = keys + MZ_CHUNK_TOKENS * DIM;
        float score = 0;
        for (int index = 0; index < DIM; index++)
            score += q[index] * from_half(keys[index]);
        float now = score > most ? score : most;
        float before = expf(most - now), here = expf(score - now);
        sum = sum * before + here;
        for (int index = 0; index < DIM; index++)
            out[index] = out[index] * before + here * from_half(values[index]);
        most = now;
    }
    for (int index = 0; index < DIM; index++)
        out[index] /= sum;
}

// One layer; MZ_ERR_CANCELLED when an eviction took what it needed.
static int compute(mz_handle *handle, uint32_t layer, uint32_t token, float *stream)
{
    float q[DIM], k[DIM], v[DIM], out[DIM];
    mz_span span = {.struct_bytes = sizeof span};
    int result = mz_wait_weights(handle, layer, &span);
    if (result != MZ_OK)
        return result;
    const float *weights = span.data;
    multiply(weights, stream, q);
    multiply(weights + MATRIX, stream, k);
    multiply(weights + 2 * MATRIX, stream, v);
    must("release weights", mz_release_weights(handle, layer));
    result = write_kv(handle, layer, token, k, v);
    if (result != MZ_OK)
        return result;
    void *chunks[CHUNKS_MAX];
    uint32_t count = CHUNKS_MAX;
    result = mz_wait_kv_table(handle, layer, chunks, &count);
    if (result != MZ_OK)
        return result;
    attend(chunks, token, q, out);
    must("release KV", mz_release_kv(handle, layer, count));
    float norm = 0;
    for (int index = 0; index < DIM; index++) {
        stream[index] += out[index];
        norm += stream[index] * stream[index];
    }
    for (int index = 0; index < DIM; index++)
        stream[index] *= 8.0f / sqrtf(norm + 1e-6f);
    return MZ_OK;
}

static int pass(mz_handle *handle, uint32_t token, uint32_t place, float *stream)
{
    for (uint32_t index = 0; index < DIM; index++)
        stream[index] = 8.0f * weight(token * DIM + index);
    int result = mz_restore_begin(handle, place + 1);
    for (uint32_t layer = 0; result == MZ_OK && layer < LAYERS; layer++)
        result = compute(handle, layer, place, stream);
    return result == MZ_OK ? mz_restore_end(handle, place + 1) : result;
}

// Appends a token and says which one follows.
static uint32_t next_after(mz_handle *handle, uint32_t token, uint32_t place)
{
    float stream[DIM];
    int result;
    // An eviction that came first: what it took comes back with the next pass.
    while ((result = pass(handle, token, place, stream)) == MZ_ERR_CANCELLED)
        must("give up", mz_release_all(handle));
    must("pass", result);
    float sum = 0;
    for (int index = 0; index < DIM; index++)
        sum += stream[index] * (float)(index + 1);
    return (uint32_t)(int32_t)(sum * 64.0f) % VOCABULARY;
}

static void answer(mz_handle *handle, uint32_t *tokens)
{
    uint32_t token = 7;
    for (uint32_t index = 0; index < ANSWER; index++)
        tokens[index] = token = next_after(handle, token, CONTEXT + index);
    must("truncate", mz_truncate(handle, CONTEXT));
}

struct pressure {
    mz_handle *handle;
    atomic_int stop;
    atomic_int evictions;
};

// Other apps want memory, again and again.
static void *press(void *argument)
{
    struct pressure *pressure = argument;
    while (!atomic_load(&pressure->stop)) {
        mz_report report = {.struct_bytes = sizeof report};
        must("evict", mz_evict(pressure->handle, 200000, 50000000, &report));
        check("nothing failed", report.error == MZ_OK);
        atomic_fetch_add(&pressure->evictions, 1);
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    }
    return NULL;
}

static void *open_ports(const char *folder, mz_ports *ports)
{
    char model[4096], swap[4096];
    snprintf(model, sizeof model, "%s/model", folder);
    snprintf(swap, sizeof swap, "%s/swap", folder);
    write_model(model);
    mz_linux_config config = {.struct_bytes = sizeof config, .model_path = model,
                              .swap_path = swap};
    mz_error error = {.struct_bytes = sizeof error};
    size_t bytes = 0;
    must("ports", mz_ports_linux_required_bytes(&bytes, &error));
    void *memory = malloc(bytes);
    int result = mz_ports_linux(&config, memory, bytes, ports, &error);
    if (result != MZ_OK)
        fail(error.what, result);
    return memory;
}

static void *open_manager(const mz_ports *ports, mz_handle **handle)
{
    mz_extent extents[LAYERS];
    for (uint64_t layer = 0; layer < LAYERS; layer++)
        extents[layer] = (mz_extent){.file_offset = layer * UNIT_BYTES, .bytes = UNIT_BYTES};
    mz_worker workers[8];
    uint32_t count = 8;
    mz_error error = {.struct_bytes = sizeof error};
    must("workers", mz_linux_workers(1, 1, 1, 1, workers, &count, &error));
    mz_config config = {
        .struct_bytes = sizeof config,
        .kv_layers = LAYERS,
        .kv_heads = 1,
        .head_dim = DIM,
        .context_tokens_max = CONTEXT_MAX,
        .weight_units = LAYERS,
        .extents = extents,
        .extent_count = LAYERS,
        .swap_file = 1,
        .codec = MZ_CODEC_RAW,
        .workers = workers,
        .worker_count = count,
    };
    size_t bytes = 0;
    int result = mz_required_bytes(&config, &bytes, &error);
    void *memory = result == MZ_OK ? malloc(bytes) : NULL;
    if (result == MZ_OK)
        result = mz_open(&config, ports, memory, bytes, handle, &error);
    if (result != MZ_OK)
        fail(error.what, result);
    return memory;
}

static void compare_rounds(mz_handle *handle, const uint32_t *expected)
{
    uint32_t tokens[ANSWER];
    for (int round = 0; round < ROUNDS; round++) {
        mz_report report = {.struct_bytes = sizeof report};
        must("evict", mz_evict(handle, UINT64_MAX, 0, &report));
        check("all is evicted", report.stop == MZ_STOP_EXHAUSTED && report.error == MZ_OK);
        check("memory is measured", report.measured_bytes != INT64_MIN);
        answer(handle, tokens);
        check("same answer", memcmp(tokens, expected, sizeof tokens) == 0);
    }
    struct pressure pressure = {.handle = handle};
    pthread_t thread;
    check("thread", pthread_create(&thread, NULL, press, &pressure) == 0);
    for (int round = 0; round < ROUNDS || atomic_load(&pressure.evictions) < ROUNDS; round++) {
        answer(handle, tokens);
        check("same answer under pressure", memcmp(tokens, expected, sizeof tokens) == 0);
    }
    atomic_store(&pressure.stop, 1);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    check("usage: engine FOLDER", argc == 2);
    atomic_int entries = 0;
    mz_log log = {.struct_bytes = sizeof log, .level = MZ_LEVEL_WARNING, .context = &entries,
                  .entry = hear};
    mz_ports ports = {.struct_bytes = sizeof ports};
    void *ports_memory = open_ports(argv[1], &ports);
    ports.log = &log;
    mz_handle *handle = NULL;
    void *memory = open_manager(&ports, &handle);
    check("ports are in use", mz_ports_close(&ports, NULL) == MZ_ERR_BAD_STATE);

    uint32_t token = 1, expected[ANSWER];
    for (uint32_t place = 0; place < CONTEXT; place++)
        token = next_after(handle, token, place);
    answer(handle, expected);
    compare_rounds(handle, expected);

    int heard = atomic_load(&entries);
    check("no such layer", mz_release_kv(handle, LAYERS, 0) == MZ_ERR_INVALID_ARGUMENT);
    check("a failure is told", atomic_load(&entries) == heard + 1);
    must("close", mz_close(handle));
    must("close ports", mz_ports_close(&ports, NULL));
    check("closed once", mz_ports_close(&ports, NULL) == MZ_ERR_BAD_STATE);
    free(memory);
    free(ports_memory);
    printf("ok");
    for (int index = 0; index < ANSWER; index++)
        printf(" %u", (unsigned)expected[index]);
    printf("\n");
    return 0;
}
