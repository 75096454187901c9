// The context of known values on a machine with a C library: how a failure ends the program, the
// model's file, the manager's memory.

#ifndef HOSTED_H
#define HOSTED_H

#include "known.h"

#include <stdio.h>
#include <stdlib.h>

enum { PATH_BYTES = 4096 };

static void fail(const char *what, int result, const mz_error *error)
{
    printf("%s: %s (%s, %lld)\n", what, mz_strerror(result), error->what,
           (long long)error->value);
    exit(1);
}

// Calls a function of the library; any failure ends the service.
static int must(const char *what, int result)
{
    mz_error error = {.struct_bytes = sizeof error};
    if (result >= 0)
        return result;
    if (handle)
        mz_last_error(handle, &error);
    fail(what, result, &error);
    return result;
}

static void check(const char *what, int holds)
{
    if (!holds) {
        printf("%s\n", what);
        exit(1);
    }
}

static void in_folder(char *path, const char *folder, const char *name)
{
    int length = snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    check(name, length > 0 && length < PATH_BYTES);
}

static void write_model(const char *path)
{
    static unsigned char bytes[UNIT_BYTES];
    FILE *file = fopen(path, "wb");
    check(path, file != NULL);
    for (size_t unit = 0; unit < UNITS; unit++) {
        for (size_t index = 0; index < UNIT_BYTES; index++)
            bytes[index] = weight_byte(unit, index);
        check(path, fwrite(bytes, sizeof bytes, 1, file) == 1);
    }
    check(path, fclose(file) == 0);
}

// Opens the manager in memory that it says it needs.
static void *open_manager(const mz_config *config, const mz_ports *ports)
{
    mz_error error = {.struct_bytes = sizeof error};
    size_t bytes = 0;
    int result = mz_required_bytes(config, &bytes, &error);
    void *memory = result == MZ_OK ? malloc(bytes) : NULL;
    if (result == MZ_OK)
        result = mz_open(config, ports, memory, bytes, &handle, &error);
    if (result != MZ_OK)
        fail("open", result, &error);
    return memory;
}

#endif
