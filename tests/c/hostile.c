// Calls that a careful program never makes: each is answered with a code, and nothing else happens.
// Built with AddressSanitizer, so that the library's memory is watched like all of the heap.
//
//   hostile MODEL SWAP      prints "ok", or which call was answered otherwise

#include "mzcache.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static void expect(const char *what, int result, int expected)
{
    if (result == expected)
        return;
    printf("%s: %d (%s) instead of %d\n", what, result, mz_strerror(result), expected);
    failures++;
}

// Any pointer with an offset, as a program that computes addresses wrongly has it.
static void *moved(void *pointer, ptrdiff_t bytes)
{
    return (char *)pointer + bytes;
}

struct open {
    mz_ports ports;
    mz_config config;
    mz_extent extent;
    void *ports_memory, *memory;
    size_t bytes, ports_bytes;
    mz_linux_config files;
    mz_handle *handle;
};

static void open_ports(struct open *open, const char *model, const char *swap)
{
    mz_linux_config config = {.struct_bytes = sizeof config, .model_path = model,
                              .swap_path = swap, .flags = 2};
    size_t bytes = 0;
    open->ports = (mz_ports){.struct_bytes = sizeof open->ports};
    expect("ports' size", mz_ports_linux_required_bytes(&bytes, NULL), MZ_OK);
    open->ports_memory = malloc(bytes);
    expect("no memory", mz_ports_linux(&config, NULL, bytes, &open->ports, NULL),
           MZ_ERR_INVALID_ARGUMENT);
    expect("little memory", mz_ports_linux(&config, open->ports_memory, 1, &open->ports, NULL),
           MZ_ERR_MEMORY_TOO_SMALL);
    expect("flags", mz_ports_linux(&config, open->ports_memory, bytes, &open->ports, NULL),
           MZ_ERR_UNSUPPORTED);
    config.flags |= MZ_KEEP_SWAP;
    expect("flags, one known", mz_ports_linux(&config, open->ports_memory, bytes, &open->ports,
                                              NULL), MZ_ERR_UNSUPPORTED);
    config.flags = MZ_KEEP_SWAP;
    config.swap_path = "/";
    expect("a folder kept", mz_ports_linux(&config, open->ports_memory, bytes, &open->ports, NULL),
           MZ_ERR_IO);
    config.swap_path = swap;
    open->files = config;
    open->ports_bytes = bytes;
    expect("ports", mz_ports_linux(&config, open->ports_memory, bytes, &open->ports, NULL), MZ_OK);
    open->extent = (mz_extent){.bytes = 1 << 20};
    open->config = (mz_config){.struct_bytes = sizeof open->config, .kv_layers = 1, .kv_heads = 1,
                               .head_dim = 32, .context_tokens_max = 512, .weight_units = 1,
                               .extents = &open->extent, .extent_count = 1, .swap_file = 1};
}

static void open_wrongly(struct open *open)
{
    mz_handle *handle = NULL;
    mz_error error = {.struct_bytes = sizeof error};
    mz_config config = open->config;
    size_t bytes = 0;
    expect("null config", mz_required_bytes(NULL, &bytes, &error), MZ_ERR_INVALID_ARGUMENT);
    expect("null bytes", mz_required_bytes(&config, NULL, &error), MZ_ERR_INVALID_ARGUMENT);
    config.struct_bytes = 3;
    expect("short table", mz_required_bytes(&config, &bytes, &error), MZ_ERR_INVALID_ARGUMENT);
    struct {
        mz_config known;
        uint64_t unknown;
    } future = {.known = open->config, .unknown = 1};
    future.known.struct_bytes = sizeof future;
    expect("future table", mz_required_bytes(&future.known, &bytes, &error), MZ_ERR_UNSUPPORTED);
    future.unknown = 0;
    expect("future table, unused", mz_required_bytes(&future.known, &bytes, &error), MZ_OK);
    open->bytes = bytes;
    open->memory = malloc(bytes + 64);
    expect("null ports", mz_open(&open->config, NULL, open->memory, bytes, &handle, &error),
           MZ_ERR_INVALID_ARGUMENT);
    expect("null handle", mz_open(&open->config, &open->ports, open->memory, bytes, NULL, &error),
           MZ_ERR_INVALID_ARGUMENT);
    expect("little memory", mz_open(&open->config, &open->ports, open->memory, bytes - 1, &handle,
                                    &error), MZ_ERR_MEMORY_TOO_SMALL);
    expect("vast memory", mz_open(&open->config, &open->ports, open->memory, SIZE_MAX, &handle,
                                  &error), MZ_ERR_INVALID_ARGUMENT);
    expect("overlapping handle", mz_open(&open->config, &open->ports, open->memory, bytes,
                                         moved(open->memory, 8), &error), MZ_ERR_INVALID_ARGUMENT);
    expect("overlapping config", mz_open(memcpy(open->memory, &open->config, sizeof config),
                                         &open->ports, open->memory, bytes, &handle, &error),
           MZ_ERR_INVALID_ARGUMENT);
    config = open->config;
    config.extents = memcpy(open->memory, &open->extent, sizeof open->extent);
    expect("overlapping extents", mz_open(&config, &open->ports, open->memory, bytes, &handle,
                                          &error), MZ_ERR_INVALID_ARGUMENT);
    config.extents = moved(&open->extent, 4);
    expect("misaligned extents", mz_required_bytes(&config, &bytes, &error),
           MZ_ERR_INVALID_ARGUMENT);
    expect("nothing was opened", handle == NULL ? MZ_OK : 1, MZ_OK);
    // At an address that nothing is aligned to.
    expect("open", mz_open(&open->config, &open->ports, moved(open->memory, 3), open->bytes,
                           &open->handle, &error), MZ_OK);
}

// Leases for an accelerator, on memory that host and device both see.
static void lease_wrongly(mz_handle *handle)
{
    mz_span span = {.struct_bytes = sizeof span};
    mz_device_span device = {.struct_bytes = sizeof device}, old = {.struct_bytes = 8};
    uint32_t count = 1;
    expect("device: no span", mz_wait_weights_device(handle, 0, NULL), MZ_ERR_INVALID_ARGUMENT);
    expect("device: misaligned span", mz_wait_weights_device(handle, 0, moved(&device, 4)),
           MZ_ERR_INVALID_ARGUMENT);
    expect("device: short span", mz_wait_weights_device(handle, 0, &old),
           MZ_ERR_INVALID_ARGUMENT);
    expect("device: no such layer", mz_wait_weights_device(handle, 1, &device),
           MZ_ERR_INVALID_ARGUMENT);
    expect("device: no handle", mz_wait_weights_device(NULL, 0, &device),
           MZ_ERR_INVALID_ARGUMENT);
    expect("device: no count", mz_wait_kv_device(handle, 0, &device, NULL),
           MZ_ERR_INVALID_ARGUMENT);
    expect("device: no room", mz_wait_kv_device(handle, 0, NULL, &count),
           MZ_ERR_INVALID_ARGUMENT);
    expect("device: no tail", mz_kv_tail_device(handle, 0, 0, &device), MZ_ERR_INVALID_ARGUMENT);
    expect("device: weights", mz_wait_weights_device(handle, 0, &device), MZ_OK);
    expect("host and device at once", mz_wait_weights(handle, 0, &span), MZ_ERR_LEASED);
    expect("device: close while leased", mz_close(handle), MZ_ERR_LEASED);
    expect("device: release", mz_release_weights(handle, 0), MZ_OK);
    expect("device: released twice", mz_release_weights(handle, 0), MZ_ERR_BAD_STATE);
}

enum { TOKENS = 300, VALUES = 32 };

static const mz_tag right_tag = {.low = 2, .high = 3}, wrong_tag = {.low = 2};

static void tag_wrongly(void)
{
    mz_tag tag = {.low = 5};
    uint32_t tokens[2] = {1, 2};
    expect("no tag", mz_tag_tokens(NULL, tokens, 2), MZ_ERR_INVALID_ARGUMENT);
    expect("misaligned tag", mz_tag_tokens(moved(&tag, 4), tokens, 1), MZ_ERR_INVALID_ARGUMENT);
    expect("no tokens", mz_tag_tokens(&tag, NULL, 1), MZ_ERR_INVALID_ARGUMENT);
    expect("misaligned tokens", mz_tag_tokens(&tag, moved(tokens, 2), 1), MZ_ERR_INVALID_ARGUMENT);
    expect("endless tokens", mz_tag_tokens(&tag, tokens, SIZE_MAX), MZ_ERR_INVALID_ARGUMENT);
    expect("tag as it was", tag.low == 5 && tag.high == 0 ? MZ_OK : 1, MZ_OK);
    expect("none of no tokens", mz_tag_tokens(&tag, NULL, 0), MZ_OK);
}

// On a manager without a context.
static void keep_wrongly(mz_handle *handle)
{
    mz_checkpoint_report report = {.struct_bytes = 4};
    mz_recovered recovered = {.struct_bytes = 4};
    const mz_tag tag = right_tag;
    expect("keep: no handle", mz_checkpoint(NULL, tag, 0, NULL), MZ_ERR_INVALID_ARGUMENT);
    expect("keep: misaligned handle", mz_checkpoint(moved(handle, 1), tag, 0, NULL),
           MZ_ERR_INVALID_ARGUMENT);
    expect("keep: no such handle", mz_checkpoint(moved(handle, -64), tag, 0, NULL),
           MZ_ERR_BAD_STATE);
    expect("keep: short report", mz_checkpoint(handle, tag, 0, &report), MZ_ERR_INVALID_ARGUMENT);
    report.struct_bytes = sizeof report;
    expect("keep: misaligned report", mz_checkpoint(handle, tag, 0, moved(&report, 4)),
           MZ_ERR_INVALID_ARGUMENT);
    expect("recover: no handle", mz_recover(NULL, tag, NULL), MZ_ERR_INVALID_ARGUMENT);
    expect("recover: misaligned handle", mz_recover(moved(handle, 1), tag, NULL),
           MZ_ERR_INVALID_ARGUMENT);
    expect("recover: no such handle", mz_recover(moved(handle, -64), tag, NULL),
           MZ_ERR_BAD_STATE);
    expect("recover: short answer", mz_recover(handle, tag, &recovered), MZ_ERR_INVALID_ARGUMENT);
    recovered.struct_bytes = sizeof recovered;
    expect("recover: misaligned answer", mz_recover(handle, tag, moved(&recovered, 2)),
           MZ_ERR_INVALID_ARGUMENT);
    expect("recover: nothing was kept", mz_recover(handle, tag, &recovered), MZ_ERR_BAD_MAGIC);
}

// Tokens up to that many, the last one of them written.
static void append(mz_handle *handle, uint32_t tokens)
{
    mz_span span = {.struct_bytes = sizeof span};
    expect("begin", mz_restore_begin(handle, tokens), MZ_OK);
    expect("tail", mz_kv_tail(handle, 0, tokens - 1, &span), MZ_OK);
    memset((char *)span.data + (tokens - 1) % MZ_CHUNK_TOKENS * VALUES * 2, 0x3C, VALUES * 2);
    expect("written", mz_release_tail(handle, 0, tokens - 1), MZ_OK);
    expect("end", mz_restore_end(handle, tokens), MZ_OK);
}

static void check_values(mz_handle *handle)
{
    mz_span spans[2] = {{.struct_bytes = sizeof spans[0]}};
    char values[VALUES * 2];
    uint32_t count = 2;
    memset(values, 0x3C, sizeof values);
    expect("restore", mz_restore(handle), MZ_OK);
    expect("chunks", mz_wait_kv(handle, 0, spans, &count), MZ_OK);
    char *at = (char *)spans[1].data + (TOKENS - 1) % MZ_CHUNK_TOKENS * VALUES * 2;
    expect("values", count == 2 && memcmp(at, values, sizeof values) == 0 ? MZ_OK : 1, MZ_OK);
    expect("chunks back", mz_release_kv(handle, 0, count), MZ_OK);
}

static void *evict_often(void *handle)
{
    for (int round = 0; round < 50; round++)
        expect("evict", mz_evict(handle, UINT64_MAX, 0, NULL), MZ_OK);
    return NULL;
}

// Checkpoints while another thread evicts: each is whole, or says that it was cancelled.
static void keep_during_evictions(mz_handle *handle)
{
    pthread_t thread;
    pthread_create(&thread, NULL, evict_often, handle);
    for (int round = 0; round < 50; round++) {
        mz_checkpoint_report report = {.struct_bytes = sizeof report};
        expect("keep", mz_checkpoint(handle, right_tag, 0, &report), MZ_OK);
        if (report.stop != MZ_STOP_CANCELLED)
            expect("kept whole", (int)report.durable_tokens, TOKENS);
        int result = mz_restore(handle);
        expect("restore or not", result == MZ_ERR_CANCELLED ? MZ_OK : result, MZ_OK);
    }
    pthread_join(thread, NULL);
}

static void open_again(struct open *open, uint32_t flags)
{
    open->files.flags = flags;
    expect("ports again", mz_ports_linux(&open->files, open->ports_memory, open->ports_bytes,
                                         &open->ports, NULL), MZ_OK);
    expect("open again", mz_open(&open->config, &open->ports, open->memory, open->bytes,
                                 &open->handle, NULL), MZ_OK);
}

static void close_again(struct open *open)
{
    expect("close", mz_close(open->handle), MZ_OK);
    expect("keep: after close", mz_checkpoint(open->handle, wrong_tag, 0, NULL),
           MZ_ERR_BAD_STATE);
    expect("recover: after close", mz_recover(open->handle, wrong_tag, NULL), MZ_ERR_BAD_STATE);
    expect("close ports", mz_ports_close(&open->ports, NULL), MZ_OK);
}

// Bits of the swap file change, from a place on.
static void damage(const char *path, long from, long bytes)
{
    FILE *file = fopen(path, "r+b");
    for (long at = from; file && at < from + bytes; at++) {
        fseek(file, at, SEEK_SET);
        int byte = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(byte ^ 0x40, file);
    }
    expect("damage", file && fclose(file) == 0 ? MZ_OK : 1, MZ_OK);
}

// Handles one after the other on one swap file.
static void outlive_wrongly(struct open *open)
{
    mz_recovered recovered = {.struct_bytes = sizeof recovered};
    const mz_tag tag = right_tag;
    open_again(open, 0);
    append(open->handle, TOKENS);
    mz_span span = {.struct_bytes = sizeof span};
    expect("another pass", mz_restore_begin(open->handle, TOKENS + 1), MZ_OK);
    expect("its tail", mz_kv_tail(open->handle, 0, TOKENS, &span), MZ_OK);
    expect("keep: while it is written", mz_checkpoint(open->handle, tag, 0, NULL), MZ_ERR_LEASED);
    expect("tail back", mz_release_tail(open->handle, 0, TOKENS), MZ_OK);
    keep_during_evictions(open->handle);
    check_values(open->handle);
    expect("keep: no time", mz_checkpoint(open->handle, tag, 1, NULL), MZ_OK);
    expect("keep", mz_checkpoint(open->handle, tag, 0, NULL), MZ_OK);
    expect("recover: a context is there", mz_recover(open->handle, tag, &recovered),
           MZ_ERR_BAD_STATE);
    close_again(open);
    open_again(open, MZ_KEEP_SWAP);
    expect("recover: wrong tag", mz_recover(open->handle, wrong_tag, &recovered),
           MZ_ERR_MISMATCH);
    expect("recover", mz_recover(open->handle, tag, &recovered), MZ_OK);
    expect("recovered", recovered.lost == UINT32_MAX ? (int)recovered.tokens : -1, TOKENS);
    check_values(open->handle);
    expect("recover twice", mz_recover(open->handle, tag, NULL), MZ_ERR_BAD_STATE);
    close_again(open);
    open->config.codec = MZ_CODEC_RAW;
    open_again(open, MZ_KEEP_SWAP);
    expect("recover: another codec", mz_recover(open->handle, tag, NULL), MZ_ERR_MISMATCH);
    close_again(open);
    open->config.codec = 0;
    // Every slot's first page; two superblocks and two tables are before them.
    for (int slot = 0; slot < 4; slot++)
        damage(open->files.swap_path, 4 * 4096L + slot * 32768L, 4096);
    open_again(open, MZ_KEEP_SWAP);
    expect("recover: damaged chunks", mz_recover(open->handle, tag, NULL), MZ_OK);
    uint32_t lost = UINT32_MAX;
    mz_restore(open->handle);
    expect("lost", mz_lost(open->handle, &lost), 1);
    expect("lost from", (int)lost, 0);
    expect("keep: what is lost", mz_checkpoint(open->handle, tag, 0, NULL), MZ_ERR_CORRUPT);
    close_again(open);
    damage(open->files.swap_path, 0, 2 * 4096);
    open_again(open, MZ_KEEP_SWAP);
    expect("recover: damaged head", mz_recover(open->handle, tag, NULL), MZ_ERR_BAD_MAGIC);
    append(open->handle, TOKENS);
    expect("keep: over it", mz_checkpoint(open->handle, tag, 0, NULL), MZ_OK);
    close_again(open);
    // Emptied when it is not to be kept.
    open_again(open, 0);
    expect("recover: emptied", mz_recover(open->handle, tag, NULL), MZ_ERR_BAD_MAGIC);
    append(open->handle, TOKENS);
    expect("keep: for the model", mz_checkpoint(open->handle, tag, 0, NULL), MZ_OK);
    close_again(open);
}

static void open_opencl_wrongly(struct open *open, const char *model)
{
    static _Alignas(64) char memory[1 << 20];
    mz_opencl_config config = {.struct_bytes = sizeof config, .model_path = model,
                               .library = "/nonexistent/libOpenCL.so"};
    mz_opencl_info info = {.struct_bytes = sizeof info};
    mz_ports ports = {.struct_bytes = sizeof ports};
    mz_error error = {.struct_bytes = sizeof error};
    size_t bytes = 0;
    expect("opencl: no manager", mz_ports_opencl_required_bytes(&config, &bytes, &error),
           MZ_ERR_INVALID_ARGUMENT);
    mz_config manager = open->config;
    config.manager = &manager;
    manager.kv_layers = 0;
    expect("opencl: no layers", mz_ports_opencl_required_bytes(&config, &bytes, &error),
           MZ_ERR_LIMIT_EXCEEDED);
    manager.kv_layers = 1;
    expect("opencl: no bytes", mz_ports_opencl_required_bytes(&config, NULL, &error),
           MZ_ERR_INVALID_ARGUMENT);
    expect("opencl: size", mz_ports_opencl_required_bytes(&config, &bytes, &error), MZ_OK);
    expect("opencl: fits", bytes <= sizeof memory ? MZ_OK : 1, MZ_OK);
    expect("opencl: no info", mz_ports_opencl(&config, memory, bytes, &ports, NULL, &error),
           MZ_ERR_INVALID_ARGUMENT);
    expect("opencl: no ports", mz_ports_opencl(&config, memory, bytes, NULL, &info, &error),
           MZ_ERR_INVALID_ARGUMENT);
    expect("opencl: little memory", mz_ports_opencl(&config, memory, bytes - 1, &ports, &info,
                                                    &error), MZ_ERR_MEMORY_TOO_SMALL);
    expect("opencl: overlapping info", mz_ports_opencl(&config, memory, bytes, &ports,
                                                       memcpy(memory, &info, sizeof info), &error),
           MZ_ERR_INVALID_ARGUMENT);
    expect("opencl: no library", mz_ports_opencl(&config, memory, bytes, &ports, &info, &error),
           MZ_ERR_NO_DEVICE);
    config.sharing = 4;
    expect("opencl: sharing", mz_ports_opencl(&config, memory, bytes, &ports, &info, &error),
           MZ_ERR_UNSUPPORTED);
    config.sharing = 0;
    config.flags = 2;
    expect("opencl: flags", mz_ports_opencl(&config, memory, bytes, &ports, &info, &error),
           MZ_ERR_UNSUPPORTED);
    expect("opencl: nothing was opened", ports.owner == NULL ? MZ_OK : 1, MZ_OK);
}

static void *close_inside(void *handle)
{
    expect("another thread's release", mz_release_weights(handle, 0), MZ_OK);
    expect("another thread's second release", mz_release_weights(handle, 0), MZ_ERR_BAD_STATE);
    return NULL;
}

static void use_wrongly(struct open *open)
{
    mz_handle *handle = open->handle;
    mz_span span = {.struct_bytes = sizeof span};
    uint32_t count = 1;
    expect("no handle", mz_restore(NULL), MZ_ERR_INVALID_ARGUMENT);
    expect("misaligned handle", mz_restore(moved(handle, 1)), MZ_ERR_INVALID_ARGUMENT);
    expect("no such handle", mz_restore(moved(handle, -64)), MZ_ERR_BAD_STATE);
    void *copy = memcpy(calloc(1, 4096), handle, 64);
    expect("copied handle", mz_restore(copy), MZ_ERR_BAD_STATE);
    free(copy);
    expect("nothing to end", mz_release_weights(handle, 0), MZ_ERR_BAD_STATE);
    expect("restore", mz_restore(handle), MZ_OK);
    expect("no span", mz_wait_weights(handle, 0, NULL), MZ_ERR_INVALID_ARGUMENT);
    expect("misaligned span", mz_wait_weights(handle, 0, moved(&span, 2)),
           MZ_ERR_INVALID_ARGUMENT);
    expect("no such layer", mz_wait_weights(handle, 1, &span), MZ_ERR_INVALID_ARGUMENT);
    expect("weights", mz_wait_weights(handle, 0, &span), MZ_OK);
    expect("close while leased", mz_close(handle), MZ_ERR_LEASED);
    expect("ports in use", mz_ports_close(&open->ports, NULL), MZ_ERR_BAD_STATE);
    pthread_t thread;
    pthread_create(&thread, NULL, close_inside, handle);
    pthread_join(thread, NULL);
    lease_wrongly(handle);
    keep_wrongly(handle);
    expect("no room", mz_wait_kv(handle, 0, NULL, &count), MZ_ERR_INVALID_ARGUMENT);
    expect("endless room", (count = UINT32_MAX, mz_wait_kv(handle, 0, &span, &count)), MZ_OK);
    expect("no tail", mz_kv_tail(handle, 0, 0, &span), MZ_ERR_INVALID_ARGUMENT);
    expect("vast context", mz_restore_begin(handle, UINT32_MAX), MZ_ERR_LIMIT_EXCEEDED);
    expect("close", mz_close(handle), MZ_OK);
    expect("double close", mz_close(handle), MZ_ERR_BAD_STATE);
    expect("keep: after close", mz_checkpoint(handle, wrong_tag, 0, NULL), MZ_ERR_BAD_STATE);
    expect("recover: after close", mz_recover(handle, wrong_tag, NULL), MZ_ERR_BAD_STATE);
    expect("use after close", mz_restore_begin(handle, 1), MZ_ERR_BAD_STATE);
    mz_device_span device = {.struct_bytes = sizeof device};
    expect("device: use after close", mz_wait_weights_device(handle, 0, &device),
           MZ_ERR_BAD_STATE);
    expect("close ports", mz_ports_close(&open->ports, NULL), MZ_OK);
    expect("double close of ports", mz_ports_close(&open->ports, NULL), MZ_ERR_BAD_STATE);
    expect("closed ports", mz_open(&open->config, &open->ports, open->memory, open->bytes, &handle,
                                   NULL), MZ_ERR_BAD_STATE);
}

struct nested {
    mz_model *model;
    mz_handle *handle;
    int other;
};

static void *compute(void *argument)
{
    struct nested *nested = argument;
    uint32_t token = 1;
    nested->other = mz_restore_generate(nested->model, &token, 1, 0, NULL, NULL, NULL);
    return NULL;
}

// In the middle of a generation nobody else may compute or close; the context may be kept.
static int hear(void *context, uint32_t token)
{
    struct nested *nested = context;
    (void)token;
    expect("close inside", mz_model_close(nested->model), MZ_ERR_BAD_STATE);
    pthread_t thread;
    pthread_create(&thread, NULL, compute, nested);
    pthread_join(thread, NULL);
    expect("another thread's pass", nested->other, MZ_ERR_BAD_STATE);
    expect("recover: inside", mz_recover(nested->handle, wrong_tag, NULL), MZ_ERR_BAD_STATE);
    expect("keep: inside", mz_checkpoint(nested->handle, wrong_tag, 0, NULL), MZ_OK);
    return 1;
}

static void use_model_wrongly(const char *path, const char *swap)
{
    mz_model_config config = {.struct_bytes = sizeof config, .model_path = path,
                              .swap_path = swap, .flags = MZ_KEEP_SWAP | 2};
    mz_model *model = NULL;
    size_t bytes = 0;
    expect("model's flags", mz_model_required_bytes(&config, &bytes, NULL), MZ_ERR_UNSUPPORTED);
    config.flags = MZ_KEEP_SWAP;
    expect("model's size", mz_model_required_bytes(&config, &bytes, NULL), MZ_OK);
    char *memory = malloc(bytes);
    expect("overlapping model", mz_model_open(&config, memory, bytes, (mz_model **)(void *)memory,
                                              NULL), MZ_ERR_INVALID_ARGUMENT);
    expect("little memory", mz_model_open(&config, memory, bytes - 1, &model, NULL),
           MZ_ERR_MEMORY_TOO_SMALL);
    expect("model", mz_model_open(&config, memory, bytes, &model, NULL), MZ_OK);
    struct nested nested = {.model = model};
    expect("model's handle", mz_model_handle(model, &nested.handle), MZ_OK);
    expect("recover: another model", mz_recover(nested.handle, right_tag, NULL), MZ_ERR_MISMATCH);
    uint32_t tokens[2] = {1, UINT32_MAX};
    expect("no such token", mz_restore_generate(model, tokens, 2, 1, hear, &nested, NULL),
           MZ_ERR_INVALID_ARGUMENT);
    expect("misaligned tokens", mz_restore_generate(model, moved(tokens, 1), 1, 1, hear, &nested,
                                                    NULL), MZ_ERR_INVALID_ARGUMENT);
    expect("nobody hears", mz_restore_generate(model, tokens, 1, 1, NULL, NULL, NULL),
           MZ_ERR_INVALID_ARGUMENT);
    expect("generate", mz_restore_generate(model, tokens, 1, 1, hear, &nested, NULL), MZ_OK);
    expect("close", mz_model_close(model), MZ_OK);
    expect("double close", mz_model_close(model), MZ_ERR_BAD_STATE);
    expect("use after close", mz_restore_generate(model, tokens, 1, 0, NULL, NULL, NULL),
           MZ_ERR_BAD_STATE);
    expect("keep: after close", mz_checkpoint(nested.handle, wrong_tag, 0, NULL),
           MZ_ERR_BAD_STATE);
    free(memory);
}

int main(int argc, char **argv)
{
    static struct open open;
    if (argc != 3) {
        printf("usage: hostile MODEL SWAP\n");
        return 2;
    }
    open_ports(&open, argv[1], argv[2]);
    open_wrongly(&open);
    use_wrongly(&open);
    tag_wrongly();
    outlive_wrongly(&open);
    open_opencl_wrongly(&open, argv[1]);
    use_model_wrongly(argv[1], argv[2]);
    free(open.memory);
    free(open.ports_memory);
    if (failures == 0)
        printf("ok\n");
    return failures != 0;
}
