// A small service on libmzcache.a, as a vendor's engineer would write it: files through pread and
// pwrite, buffers from the C library, no threads. It writes a context of known values, gives all
// memory back, restores it by mz_restore_poll and checks every byte.
//
//   service FOLDER      prints "ok", or what went wrong

#define _POSIX_C_SOURCE 200809L

#include "known.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what, int result)
{
    mz_error error = {.struct_bytes = sizeof error};
    if (handle)
        mz_last_error(handle, &error);
    printf("%s: %s (%s, %lld)\n", what, mz_strerror(result), error.what, (long long)error.value);
    exit(1);
}

// Calls a function of the library; any failure ends the service.
static int must(const char *what, int result)
{
    if (result < 0)
        fail(what, result);
    return result;
}

static void check(const char *what, int holds)
{
    if (!holds)
        fail(what, 0);
}

// Storage: one file descriptor.

static int64_t file_read(void *context, uint64_t offset, void *into, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t moved = pread(*(int *)context, (char *)into + done, bytes - done, offset + done);
        if (moved == 0)
            break;
        if (moved > 0)
            done += moved;
        else if (errno != EINTR)
            return MZ_PORT_ERROR(errno);
    }
    return done;
}

static int64_t file_write(void *context, uint64_t offset, const void *from, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t moved = pwrite(*(int *)context, (const char *)from + done, bytes - done,
                               offset + done);
        if (moved > 0)
            done += moved;
        else if (moved < 0 && errno == ENOSPC)
            return MZ_ERR_NO_SPACE;
        else if (moved < 0 && errno != EINTR)
            return MZ_PORT_ERROR(errno);
    }
    return 0;
}

static int64_t file_sync(void *context)
{
    return fsync(*(int *)context) == 0 ? 0 : MZ_PORT_ERROR(errno);
}

static int64_t file_length(void *context)
{
    off_t end = lseek(*(int *)context, 0, SEEK_END);
    return end >= 0 ? end : MZ_PORT_ERROR(errno);
}

// Shared buffers: the C library's memory, counted.

static int64_t memory_allocate(void *context, mz_region *region)
{
    int failure = posix_memalign(&region->start, MZ_IO_ALIGN, region->bytes);
    if (failure)
        return MZ_ERR_OUT_OF_MEMORY;
    memset(region->start, 0, region->bytes);
    *(size_t *)context += region->bytes;
    return 0;
}

static void memory_release(void *context, const mz_region *region)
{
    *(size_t *)context -= region->bytes;
    free(region->start);
}

static uint64_t clock_now(void *context)
{
    (void)context;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int open_file(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    check(path, file >= 0);
    return file;
}

static void write_model(int file)
{
    static unsigned char unit_bytes[UNIT_BYTES];
    for (size_t unit = 0; unit < UNITS; unit++) {
        for (size_t index = 0; index < UNIT_BYTES; index++)
            unit_bytes[index] = weight_byte(unit, index);
        check("model", file_write(&file, unit * UNIT_BYTES, unit_bytes, UNIT_BYTES) == 0);
    }
}

// Opens the manager in memory that it says it needs.
static void *open_manager(const mz_ports *ports)
{
    static mz_extent extents[UNITS];
    for (int unit = 0; unit < UNITS; unit++) {
        extents[unit].file_offset = (uint64_t)unit * UNIT_BYTES;
        extents[unit].bytes = UNIT_BYTES;
    }
    mz_config config = {
        .struct_bytes = sizeof config,
        .kv_layers = LAYERS,
        .kv_heads = KV_HEADS,
        .head_dim = HEAD_DIM,
        .context_tokens_max = 4096,
        .weight_units = UNITS,
        .extents = extents,
        .extent_count = UNITS,
        .swap_file = 1,
        .codec = MZ_CODEC_RAW,
    };
    mz_error error = {.struct_bytes = sizeof error};
    size_t bytes = 0;
    int result = mz_required_bytes(&config, &bytes, &error);
    void *memory = result == MZ_OK ? malloc(bytes) : NULL;
    if (result == MZ_OK)
        result = mz_open(&config, ports, memory, bytes, &handle, &error);
    if (result != MZ_OK) {
        printf("open: %s (%s, %lld)\n", mz_strerror(result), error.what, (long long)error.value);
        exit(1);
    }
    return memory;
}

static void evict_to_zero(const size_t *live_bytes)
{
    mz_report report = {.struct_bytes = sizeof report};
    must("evict", mz_evict(handle, UINT64_MAX, 0, &report));
    check("nothing is left", report.stop == MZ_STOP_EXHAUSTED && *live_bytes == 0);
    check("nothing failed", report.error == MZ_OK && report.leased == 0);
    check("freed", report.freed_bytes ==
                       (uint64_t)UNITS * UNIT_BYTES + (uint64_t)LAYERS * CHUNKS * CHUNK_BYTES);
}

static void restore_by_polling(void)
{
    mz_stats stats = {.struct_bytes = sizeof stats};
    must("pass", mz_restore_begin(handle, TOKENS));
    int actions = 0;
    while (must("poll", mz_restore_poll(handle)) > 0)
        actions++;
    must("stats", mz_stats_get(handle, &stats));
    check("all is back", actions > 0 && stats.units_missing == 0 && stats.tokens == TOKENS);
}

int main(int argc, char **argv)
{
    check("usage: service FOLDER", argc == 2);
    int model_file = open_file(argv[1], "model");
    int swap_file = open_file(argv[1], "swap");
    write_model(model_file);
    size_t live_bytes = 0;
    mz_storage model = {.struct_bytes = sizeof model, .context = &model_file, .read = file_read,
                        .length = file_length};
    mz_storage swap = {.struct_bytes = sizeof swap, .context = &swap_file, .read = file_read,
                       .write = file_write, .sync = file_sync, .length = file_length};
    mz_memory buffers = {.struct_bytes = sizeof buffers, .context = &live_bytes,
                         .allocate = memory_allocate, .release = memory_release};
    mz_clock clock = {.struct_bytes = sizeof clock, .now = clock_now};
    mz_ports ports = {.struct_bytes = sizeof ports, .model = &model, .swap = &swap,
                      .memory = &buffers, .clock = &clock};
    void *memory = open_manager(&ports);

    pass(1);
    evict_to_zero(&live_bytes);
    restore_by_polling();
    pass(0);
    evict_to_zero(&live_bytes);
    must("restore", mz_restore(handle));
    pass(0);

    must("close", mz_close(handle));
    check("all is released", live_bytes == 0);
    check("closed", mz_close(handle) == MZ_ERR_BAD_STATE);
    free(memory);
    printf("ok %s\n", mz_version());
    return 0;
}
