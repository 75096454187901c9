// Firmware without an operating system: the model and the swap file lie in a RAM disk, buffers in a
// pool, time comes from the core's counter, and one core does everything. Writes a context of known
// values, evicts it all, restores, checks every byte, prints over the UART, and ends the machine.

#include "known.h"

void leave(int status);

extern uint64_t __mz_stack_bottom[], __mz_stack_top[];
extern unsigned char __mz_arena_start[], __mz_arena_end[];

static void put(const char *text)
{
    volatile uint32_t *uart = (volatile uint32_t *)0x09000000;
    for (; *text; text++)
        *uart = (unsigned char)*text;
}

static void put_number(int64_t number)
{
    char digits[24], *place = digits + 23;
    uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
    *place = 0;
    do
        *--place = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0)
        *--place = '-';
    put(place);
}

static int must(const char *what, int result)
{
    if (result < 0) {
        mz_error error = {.struct_bytes = sizeof error};
        if (handle)
            mz_last_error(handle, &error);
        put(what), put(": "), put(mz_strerror(result)), put(" ("), put(error.what), put(", ");
        put_number(error.value), put(")\n");
        leave(1);
    }
    return result;
}

static void check(const char *what, int holds)
{
    if (!holds) {
        put(what), put("\n");
        leave(1);
    }
}

// What a panic of the library ends in.
void abort(void)
{
    put("abort\n");
    leave(2);
    for (;;)
        ;
}

static void copy(void *to, const void *from, size_t bytes)
{
    for (size_t index = 0; index < bytes; index++)
        ((unsigned char *)to)[index] = ((const unsigned char *)from)[index];
}

// Two files of a RAM disk.

struct file {
    unsigned char *bytes;
    uint64_t length, room;
};

static unsigned char model_bytes[UNITS * UNIT_BYTES];
static unsigned char swap_bytes[4 << 20];
static struct file model_file = {model_bytes, sizeof model_bytes, sizeof model_bytes};
static struct file swap_file = {swap_bytes, 0, sizeof swap_bytes};

static int64_t disk_read(void *context, uint64_t offset, void *into, size_t bytes)
{
    struct file *file = context;
    if (offset >= file->length)
        return 0;
    if (bytes > file->length - offset)
        bytes = (size_t)(file->length - offset);
    copy(into, file->bytes + offset, bytes);
    return (int64_t)bytes;
}

static int64_t disk_write(void *context, uint64_t offset, const void *from, size_t bytes)
{
    struct file *file = context;
    if (offset > file->room || bytes > file->room - offset)
        return MZ_ERR_NO_SPACE;
    copy(file->bytes + offset, from, bytes);
    if (offset + bytes > file->length)
        file->length = offset + bytes;
    return 0;
}

static int64_t disk_sync(void *context)
{
    (void)context;
    return 0;
}

static int64_t disk_length(void *context)
{
    return (int64_t)((struct file *)context)->length;
}

// Shared buffers: slots of one size.

enum { SLOTS = 24, SLOT_BYTES = 256 << 10 };

static unsigned char slots[SLOTS][SLOT_BYTES] __attribute__((aligned(MZ_IO_ALIGN)));
static unsigned char taken[SLOTS];
static unsigned live;

static int64_t pool_allocate(void *context, mz_region *region)
{
    (void)context;
    for (unsigned slot = 0; region->bytes <= SLOT_BYTES && slot < SLOTS; slot++) {
        if (taken[slot])
            continue;
        taken[slot] = 1;
        live++;
        for (size_t index = 0; index < region->bytes; index++)
            slots[slot][index] = 0;
        region->start = slots[slot];
        region->token = slot;
        return 0;
    }
    return MZ_ERR_OUT_OF_MEMORY;
}

static void pool_release(void *context, const mz_region *region)
{
    (void)context;
    check("released once", taken[region->token] == 1);
    taken[region->token] = 0;
    live--;
}

static uint64_t counter_now(void *context)
{
    (void)context;
    uint64_t count, rate;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(count));
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(rate));
    return count / rate * 1000000000 + count % rate * 1000000000 / rate;
}

static void open_manager(uint32_t codec)
{
    mz_config config = known_config(codec);
    config.segment_bytes = SLOT_BYTES;
    mz_storage model = {.struct_bytes = sizeof model, .context = &model_file, .read = disk_read,
                        .length = disk_length};
    mz_storage swap = {.struct_bytes = sizeof swap, .context = &swap_file, .read = disk_read,
                       .write = disk_write, .sync = disk_sync, .length = disk_length};
    mz_memory memory = {.struct_bytes = sizeof memory, .allocate = pool_allocate,
                        .release = pool_release};
    mz_clock clock = {.struct_bytes = sizeof clock, .now = counter_now};
    mz_ports ports = {.struct_bytes = sizeof ports, .model = &model, .swap = &swap,
                      .memory = &memory, .clock = &clock};
    mz_error error = {.struct_bytes = sizeof error};
    size_t bytes = 0, room = (size_t)(__mz_arena_end - __mz_arena_start);
    int result = mz_required_bytes(&config, &bytes, &error);
    check("the arena is large enough", bytes <= room);
    if (result == MZ_OK)
        result = mz_open(&config, &ports, __mz_arena_start, room, &handle, &error);
    if (result != MZ_OK)
        put(error.what), put("\n");
    must("open", result);
    put("arena "), put_number((int64_t)bytes), put("\n");
}

// Codecs that lose something: the second round trip must change nothing.
static void pack_and_unpack(uint32_t codec)
{
    open_manager(codec);
    must("pass", mz_restore_begin(handle, TOKENS));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        write_layer(layer);
    must("commit", mz_restore_end(handle, TOKENS));
    for (int round = 0; round < 2; round++) {
        evict_all();
        must("restore", mz_restore(handle));
    }
    must("close", mz_close(handle));
    handle = NULL;
    check("all is released", live == 0);
}

static int64_t stack_depth(void)
{
    const uint64_t *deepest = __mz_stack_bottom;
    while (deepest < __mz_stack_top && *deepest == 0x5AA55AA55AA55AA5u)
        deepest++;
    return (int64_t)(__mz_stack_top - deepest) * 8;
}

int main(void)
{
    for (size_t unit = 0; unit < UNITS; unit++)
        for (size_t index = 0; index < UNIT_BYTES; index++)
            model_bytes[unit * UNIT_BYTES + index] = weight_byte(unit, index);
    open_manager(MZ_CODEC_RAW);
    pass(1);
    for (int round = 0; round < 2; round++) {
        evict_all();
        check("nothing is left", live == 0);
        pass(0);
    }
    must("close", mz_close(handle));
    check("closed", mz_close(handle) == MZ_ERR_BAD_STATE);
    handle = NULL;
    put("stack raw "), put_number(stack_depth()), put("\n");
    pack_and_unpack(MZ_CODEC_Q8);
    put("stack q8 "), put_number(stack_depth()), put("\n");
    pack_and_unpack(MZ_CODEC_KV4);
    put("stack kv4 "), put_number(stack_depth()), put("\n");
    pack_and_unpack(MZ_CODEC_KVH);
    put("stack kvh "), put_number(stack_depth()), put("\n");
    put("ok "), put(mz_version()), put("\n");
    return 0;
}
