// A service whose engine computes on an accelerator with kernels of its own, through OpenCL, on the
// library's buffers: one kernel sums up a layer's weights or chunks, another one writes the K and V
// of new tokens. What the accelerator sees is compared with what the host knows, before an eviction
// and after it.
//
//   accelerator FOLDER SHARING [LIBRARY DEVICE]      SHARING: 1 fine, 2 coarse, 3 buffers

#include "hosted.h"

#include <string.h>

// Of OpenCL, what is used here; its headers have all of it.
typedef void *cl_object;
int clBuildProgram(cl_object program, uint32_t devices, const cl_object *list, const char *options,
                   void (*notify)(cl_object, void *), void *context);
cl_object clCreateBuffer(cl_object context, uint64_t flags, size_t bytes, void *host, int *status);
cl_object clCreateKernel(cl_object program, const char *name, int *status);
cl_object clCreateProgramWithSource(cl_object context, uint32_t count, const char **texts,
                                    const size_t *bytes, int *status);
int clEnqueueNDRangeKernel(cl_object queue, cl_object kernel, uint32_t dimensions,
                           const size_t *offset, const size_t *global, const size_t *local,
                           uint32_t waits, const cl_object *list, cl_object *event);
int clEnqueueReadBuffer(cl_object queue, cl_object buffer, uint32_t blocking, size_t offset,
                        size_t bytes, void *into, uint32_t waits, const cl_object *list,
                        cl_object *event);
int clFinish(cl_object queue);
int clReleaseKernel(cl_object kernel);
int clReleaseMemObject(cl_object buffer);
int clReleaseProgram(cl_object program);
int clSetKernelArg(cl_object kernel, uint32_t index, size_t bytes, const void *value);
int clSetKernelArgSVMPointer(cl_object kernel, uint32_t index, const void *value);

enum { CL_MEM_READ_WRITE = 1 };

// The sum of bytes, each by its place; and tokens' values, as known.h "computes" them.
static const char *const SOURCE =
    "kernel void add(global const uchar *bytes, ulong offset, uint count, global uint *sums,\n"
    "                uint place)\n"
    "{\n"
    "    uint sum = 0;\n"
    "    for (uint index = 0; index < count; index++)\n"
    "        sum += bytes[offset + index] * (index % 251 + 1);\n"
    "    sums[place] = sum;\n"
    "}\n"
    "kernel void put(global uchar *bytes, ulong offset, uint layer, uint first, uint heads,\n"
    "                uint dim)\n"
    "{\n"
    "    global ushort *values = (global ushort *)(bytes + offset);\n"
    "    uint token = first + get_global_id(0);\n"
    "    for (uint plane = 0; plane < 2 * heads; plane++)\n"
    "        for (uint index = 0; index < dim; index++)\n"
    "            values[(plane * 256 + token % 256) * dim + index] =\n"
    "                (ushort)((layer * 31 + token * 257 + plane * 17 + index) * 40503u >> 3);\n"
    "}\n";

static mz_opencl_info device;
static cl_object program, add_kernel, put_kernel, sums;

static void cl(const char *what, int status)
{
    if (status != 0)
        printf("%s: %d\n", what, status);
    check(what, status == 0);
}

static void build(void)
{
    int status = 0;
    program = clCreateProgramWithSource(device.context, 1, (const char **)&SOURCE, NULL, &status);
    cl("program", status);
    cl("build", clBuildProgram(program, 1, &device.device, "", NULL, NULL));
    add_kernel = clCreateKernel(program, "add", &status);
    cl("kernel add", status);
    put_kernel = clCreateKernel(program, "put", &status);
    cl("kernel put", status);
    sums = clCreateBuffer(device.context, CL_MEM_READ_WRITE, CHUNKS * sizeof(uint32_t), NULL,
                          &status);
    cl("sums", status);
}

// A leased unit as a kernel's first two arguments: memory, and the first byte in it.
static void set_memory(cl_object kernel, const mz_device_span *span)
{
    if (span->buffer)
        cl("buffer", clSetKernelArg(kernel, 0, sizeof span->buffer, &span->buffer));
    else
        cl("address", clSetKernelArgSVMPointer(kernel, 0, (void *)(uintptr_t)span->address));
    cl("offset", clSetKernelArg(kernel, 1, sizeof span->offset, &span->offset));
}

static void set_number(cl_object kernel, uint32_t index, uint32_t number)
{
    cl("number", clSetKernelArg(kernel, index, sizeof number, &number));
}

static void run(cl_object kernel, size_t items)
{
    cl("run", clEnqueueNDRangeKernel(device.queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL));
}

static void enqueue_sum(const mz_device_span *span, uint32_t bytes, uint32_t place)
{
    set_memory(add_kernel, span);
    set_number(add_kernel, 2, bytes);
    cl("sums", clSetKernelArg(add_kernel, 3, sizeof sums, &sums));
    set_number(add_kernel, 4, place);
    run(add_kernel, 1);
}

// Waits for the kernels; leases may end from here on.
static void read_sums(uint32_t *into, uint32_t count)
{
    cl("read", clEnqueueReadBuffer(device.queue, sums, 1, 0, count * sizeof *into, into, 0, NULL,
                                   NULL));
}

static uint32_t sum_of(const void *data, uint32_t count)
{
    const unsigned char *bytes = data;
    uint32_t sum = 0;
    for (uint32_t index = 0; index < count; index++)
        sum += bytes[index] * (index % 251 + 1);
    return sum;
}

static uint32_t known_sum_of_weights(uint32_t unit)
{
    static unsigned char bytes[UNIT_BYTES];
    for (size_t index = 0; index < UNIT_BYTES; index++)
        bytes[index] = weight_byte(unit, index);
    return sum_of(bytes, UNIT_BYTES);
}

static uint32_t known_sum_of_chunk(uint32_t layer, uint32_t chunk)
{
    static uint16_t values[CHUNK_BYTES / 2];
    memset(values, 0, sizeof values);
    for (uint32_t row = 0; row < MZ_CHUNK_TOKENS; row++)
        for (size_t plane = 0; plane < 2 * KV_HEADS; plane++)
            for (size_t index = 0; index < HEAD_DIM; index++) {
                uint32_t token = chunk * MZ_CHUNK_TOKENS + row;
                if (token < TOKENS)
                    values[place(token, plane, index)] = value(layer, token, plane, index);
            }
    return sum_of(values, CHUNK_BYTES);
}

static void sum_weights(uint32_t unit)
{
    mz_device_span span = {.struct_bytes = sizeof span};
    mz_span host = {.struct_bytes = sizeof host};
    uint32_t sum = 0;
    must("weights", mz_wait_weights_device(handle, unit, &span));
    check("weight size", span.bytes == UNIT_BYTES && span.index == unit);
    check("named one way", (span.address == 0) != (span.buffer == NULL));
    check("by its address", (span.address != 0) == (device.sharing != MZ_SHARING_BUFFERS));
    check("host waits", mz_wait_weights(handle, unit, &host) == MZ_ERR_LEASED);
    enqueue_sum(&span, UNIT_BYTES, 0);
    read_sums(&sum, 1);
    must("release weights", mz_release_weights(handle, unit));
    check("weights on the device", sum == known_sum_of_weights(unit));
    check("released once", mz_release_weights(handle, unit) == MZ_ERR_BAD_STATE);
}

static void sum_chunks(uint32_t layer)
{
    mz_device_span spans[CHUNKS + 1] = {{.struct_bytes = sizeof spans[0]}};
    uint32_t count = 1, found[CHUNKS] = {0};
    check("room", mz_wait_kv_device(handle, layer, spans, &count) == MZ_ERR_MEMORY_TOO_SMALL);
    must("KV", mz_wait_kv_device(handle, layer, spans, &count));
    check("number of chunks", count == CHUNKS);
    for (uint32_t chunk = 0; chunk < count; chunk++) {
        check("one buffer", spans[chunk].buffer == spans[0].buffer);
        enqueue_sum(&spans[chunk], CHUNK_BYTES, chunk);
    }
    read_sums(found, count);
    must("release KV", mz_release_kv(handle, layer, count));
    for (uint32_t chunk = 0; chunk < count; chunk++)
        check("KV on the device", found[chunk] == known_sum_of_chunk(layer, chunk));
}

// The device computes K and V, a chunk at a time.
static void write_layer_on_device(uint32_t layer)
{
    for (uint32_t token = 0; token < TOKENS; token += MZ_CHUNK_TOKENS) {
        uint32_t rest = TOKENS - token;
        mz_device_span span = {.struct_bytes = sizeof span};
        must("tail", mz_kv_tail_device(handle, layer, token, &span));
        check("chunk", span.index == token / MZ_CHUNK_TOKENS && span.bytes == CHUNK_BYTES);
        set_memory(put_kernel, &span);
        set_number(put_kernel, 2, layer);
        set_number(put_kernel, 3, token);
        set_number(put_kernel, 4, KV_HEADS);
        set_number(put_kernel, 5, HEAD_DIM);
        run(put_kernel, rest < MZ_CHUNK_TOKENS ? rest : MZ_CHUNK_TOKENS);
        cl("finish", clFinish(device.queue));
        must("release tail", mz_release_tail(handle, layer, token));
    }
}

static void pass_on_device(int writes)
{
    must("pass", mz_restore_begin(handle, TOKENS));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        sum_weights(layer);
        if (writes && layer % 2)
            write_layer_on_device(layer);
        else if (writes)
            write_layer(layer);
        sum_chunks(layer);
    }
    sum_weights(LAYERS);
    must("end", mz_restore_end(handle, TOKENS));
}

// While commands are under way an eviction passes over what they read.
static void evict_around_a_lease(void)
{
    mz_device_span span = {.struct_bytes = sizeof span};
    mz_report report = {.struct_bytes = sizeof report};
    uint32_t sum = 0;
    must("restore", mz_restore(handle));
    must("weights", mz_wait_weights_device(handle, 1, &span));
    enqueue_sum(&span, UNIT_BYTES, 0);
    must("evict", mz_evict(handle, UINT64_MAX, 0, &report));
    check("one stayed", report.leased == 1 && report.stop == MZ_STOP_EXHAUSTED);
    check("closing waits", mz_close(handle) == MZ_ERR_LEASED);
    read_sums(&sum, 1);
    check("weights under eviction", sum == known_sum_of_weights(1));
    must("release", mz_release_all(handle));
    evict_all();
}

static void *open_ports(char **arguments, int count, const mz_config *manager, mz_ports *ports)
{
    static char model[PATH_BYTES], swap[PATH_BYTES];
    in_folder(model, arguments[1], "model");
    in_folder(swap, arguments[1], "swap");
    write_model(model);
    mz_opencl_config config = {.struct_bytes = sizeof config, .model_path = model,
                               .swap_path = swap, .manager = manager,
                               .sharing = (uint32_t)atoi(arguments[2]),
                               .library = count > 3 ? arguments[3] : NULL,
                               .device = count > 4 ? arguments[4] : NULL,
                               .staging_bytes = 8 << 20};
    mz_error error = {.struct_bytes = sizeof error};
    size_t bytes = 0;
    int result = mz_ports_opencl_required_bytes(&config, &bytes, &error);
    void *memory = result == MZ_OK ? malloc(bytes) : NULL;
    device.struct_bytes = sizeof device;
    mz_opencl_config nowhere = config;
    nowhere.device = "a device that nobody makes";
    if (result == MZ_OK)
        check("no such device", mz_ports_opencl(&nowhere, memory, bytes, ports, &device, NULL) ==
                                    MZ_ERR_NO_DEVICE);
    if (result == MZ_OK)
        result = mz_ports_opencl(&config, memory, bytes, ports, &device, &error);
    if (result != MZ_OK)
        fail("ports", result, &error);
    check("as asked for", device.sharing == config.sharing);
    return memory;
}

int main(int argc, char **argv)
{
    check("usage: accelerator FOLDER SHARING [LIBRARY DEVICE]", argc >= 3);
    mz_worker workers[4];
    mz_config config = known_config(MZ_CODEC_RAW);
    config.workers = workers;
    config.worker_count = 4;
    must("workers", mz_linux_workers(1, 1, 1, 0, workers, &config.worker_count, NULL));
    mz_ports ports = {.struct_bytes = sizeof ports};
    void *ports_memory = open_ports(argv, argc, &config, &ports);
    build();
    void *memory = open_manager(&config, &ports);

    pass_on_device(1);
    for (int round = 0; round < 2; round++) {
        evict_all();
        pass_on_device(0);
    }
    evict_around_a_lease();
    // What the device wrote, the host finds.
    pass(0);

    must("close", mz_close(handle));
    check("ports in use by nobody", mz_ports_close(&ports, NULL) == MZ_OK);
    check("closed once", mz_ports_close(&ports, NULL) == MZ_ERR_BAD_STATE);
    cl("release", clReleaseMemObject(sums) | clReleaseKernel(add_kernel) |
                      clReleaseKernel(put_kernel) | clReleaseProgram(program));
    free(memory);
    free(ports_memory);
    printf("ok %s\n", argv[2]);
    return 0;
}
