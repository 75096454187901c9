// A small service on libmzcache.a, as a vendor's engineer would write it: files through pread and
// pwrite, buffers from the C library, no threads. It writes a context of known values, gives all
// memory back, restores it by mz_restore_poll and checks every byte.
//
//   service FOLDER      prints "ok", or what went wrong

#define _POSIX_C_SOURCE 200809L

#include "hosted.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

static int open_file(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT, 0600);
    check(path, file >= 0);
    return file;
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
    char model_path[PATH_BYTES], swap_path[PATH_BYTES];
    in_folder(model_path, argv[1], "model");
    in_folder(swap_path, argv[1], "swap");
    write_model(model_path);
    int model_file = open_file(model_path), swap_file = open_file(swap_path);
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
    mz_config config = known_config(MZ_CODEC_RAW);
    void *memory = open_manager(&config, &ports);

    pass(1);
    evict_all();
    check("nothing is left", live_bytes == 0);
    restore_by_polling();
    pass(0);
    evict_all();
    check("nothing is left", live_bytes == 0);
    must("restore", mz_restore(handle));
    pass(0);

    must("close", mz_close(handle));
    check("all is released", live_bytes == 0);
    check("closed", mz_close(handle) == MZ_ERR_BAD_STATE);
    free(memory);
    printf("ok %s\n", mz_version());
    return 0;
}
