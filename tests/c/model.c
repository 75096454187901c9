// Runs a model: reads the context, evicts everything, and answers while it comes back. Prints the
// answer's tokens, once from memory and once after the eviction.
//
//   model MODEL SWAP COUNT < TOKENS      numbers; the last 8 are the question

#include "mzcache.h"

#include <stdio.h>
#include <stdlib.h>

enum { TOKENS_MAX = 4096, QUESTION = 8 };

static mz_handle *handle;

static int must(const char *what, int result)
{
    if (result < 0) {
        mz_error error = {.struct_bytes = sizeof error};
        if (handle)
            mz_last_error(handle, &error);
        printf("%s: %s (%s, %lld)\n", what, mz_strerror(result), error.what,
               (long long)error.value);
        exit(1);
    }
    return result;
}

struct answer {
    mz_model *model;
    size_t count;
};

static int hear(void *context, uint32_t token)
{
    struct answer *answer = context;
    printf("%s%u", answer->count++ ? " " : "", (unsigned)token);
    // The model is at work: a second pass inside of it is refused.
    int nested = mz_restore_generate(answer->model, &token, 1, 0, NULL, NULL, NULL);
    return nested != MZ_ERR_BAD_STATE;
}

static void ask(mz_model *model, const uint32_t *question, size_t count)
{
    struct answer answer = {.model = model};
    size_t generated = 0;
    uint32_t before = 0;
    must("tokens", mz_model_tokens(model, &before));
    must("generate", mz_restore_generate(model, question, QUESTION, count, hear, &answer,
                                         &generated));
    printf("\n");
    if (generated != count || answer.count != count)
        printf("generated %zu of %zu\n", generated, count);
    must("truncate", mz_truncate(handle, before));
}

int main(int argc, char **argv)
{
    static uint32_t tokens[TOKENS_MAX];
    size_t count = 0;
    if (argc != 4) {
        printf("usage: model MODEL SWAP COUNT\n");
        return 2;
    }
    for (unsigned token; count < TOKENS_MAX && scanf("%u", &token) == 1; count++)
        tokens[count] = token;
    mz_worker workers[4];
    uint32_t worker_count = 4;
    must("workers", mz_linux_workers(1, 1, 1, 0, workers, &worker_count, NULL));
    mz_config options = {.struct_bytes = sizeof options, .codec = MZ_CODEC_RAW,
                         .workers = workers, .worker_count = worker_count};
    mz_model_config config = {.struct_bytes = sizeof config, .model_path = argv[1],
                              .swap_path = argv[2], .options = &options, .compute_threads = 2};
    mz_error error = {.struct_bytes = sizeof error};
    mz_model *model = NULL;
    size_t bytes = 0;
    int result = mz_model_required_bytes(&config, &bytes, &error);
    void *memory = result == MZ_OK ? malloc(bytes) : NULL;
    if (result == MZ_OK)
        result = mz_model_open(&config, memory, bytes, &model, &error);
    if (result != MZ_OK) {
        printf("open: %s (%s, %lld)\n", mz_strerror(result), error.what, (long long)error.value);
        return 1;
    }
    must("handle", mz_model_handle(model, &handle));
    size_t context = count - QUESTION;
    must("read", mz_restore_generate(model, tokens, context, 0, NULL, NULL, NULL));
    size_t answer = (size_t)atoi(argv[3]);
    ask(model, tokens + context, answer);

    mz_report report = {.struct_bytes = sizeof report};
    must("evict", mz_evict(handle, UINT64_MAX, 0, &report));
    if (report.stop != MZ_STOP_EXHAUSTED || report.error != MZ_OK)
        printf("not all was evicted\n");
    ask(model, tokens + context, answer);

    if (mz_close(handle) != MZ_ERR_BAD_STATE)
        printf("the handle is the model's\n");
    must("close", mz_model_close(model));
    if (mz_model_close(model) != MZ_ERR_BAD_STATE)
        printf("closed twice\n");
    free(memory);
    return 0;
}
