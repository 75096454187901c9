// A context of known values: what the example services keep under the library's hands, and how they
// find that not one byte has changed. Who includes this brings check, must and the handle.

#ifndef KNOWN_H
#define KNOWN_H

#include "mzcache.h"

enum {
    LAYERS = 4,
    UNITS = LAYERS + 1, // and the output head
    UNIT_BYTES = 96 << 10,
    KV_HEADS = 2,
    HEAD_DIM = 64,
    TOKENS = 600,
    CHUNKS = (TOKENS + MZ_CHUNK_TOKENS - 1) / MZ_CHUNK_TOKENS,
    CHUNK_BYTES = 2 * KV_HEADS * MZ_CHUNK_TOKENS * HEAD_DIM * 2,
};

static mz_handle *handle;

// Ends the program unless the condition holds; for results of the library, unless it succeeded.
static void check(const char *what, int holds);
static int must(const char *what, int result);

// A manager of this context, with the model file's units one behind the other.
static mz_config known_config(uint32_t codec)
{
    static mz_extent extents[UNITS];
    for (int unit = 0; unit < UNITS; unit++)
        extents[unit] = (mz_extent){.file_offset = (uint64_t)unit * UNIT_BYTES,
                                    .bytes = UNIT_BYTES};
    return (mz_config){
        .struct_bytes = sizeof(mz_config),
        .kv_layers = LAYERS,
        .kv_heads = KV_HEADS,
        .head_dim = HEAD_DIM,
        .context_tokens_max = 1024,
        .weight_units = UNITS,
        .extents = extents,
        .extent_count = UNITS,
        .swap_file = 1,
        .codec = codec,
    };
}

static unsigned char weight_byte(size_t unit, size_t index)
{
    return (unsigned char)((unit * 7919 + index) * 2654435761u >> 13);
}

// The value that this service's model "computes" there; K of all heads first, then V.
static uint16_t value(size_t layer, size_t token, size_t plane, size_t index)
{
    return (uint16_t)((layer * 31 + token * 257 + plane * 17 + index) * 40503u >> 3);
}

static size_t place(size_t token, size_t plane, size_t index)
{
    return (plane * MZ_CHUNK_TOKENS + token % MZ_CHUNK_TOKENS) * HEAD_DIM + index;
}

static void write_layer(uint32_t layer)
{
    for (uint32_t token = 0; token < TOKENS; token++) {
        mz_span span = {.struct_bytes = sizeof span};
        must("tail", mz_kv_tail(handle, layer, token, &span));
        check("chunk size", span.bytes == CHUNK_BYTES && span.index == token / MZ_CHUNK_TOKENS);
        uint16_t *values = span.data;
        for (size_t plane = 0; plane < 2 * KV_HEADS; plane++)
            for (size_t index = 0; index < HEAD_DIM; index++)
                values[place(token, plane, index)] = value(layer, token, plane, index);
        must("release tail", mz_release_tail(handle, layer, token));
    }
}

static void check_layer(uint32_t layer)
{
    mz_span spans[CHUNKS + 1] = {{.struct_bytes = sizeof spans[0]}};
    uint32_t count = CHUNKS + 1;
    must("KV", mz_wait_kv(handle, layer, spans, &count));
    check("number of chunks", count == CHUNKS);
    for (uint32_t token = 0; token < TOKENS; token++) {
        const uint16_t *values = spans[token / MZ_CHUNK_TOKENS].data;
        for (size_t plane = 0; plane < 2 * KV_HEADS; plane++)
            for (size_t index = 0; index < HEAD_DIM; index++)
                check("KV bytes", values[place(token, plane, index)] ==
                                      value(layer, token, plane, index));
    }
    must("release KV", mz_release_kv(handle, layer, count));
}

static void check_weights(uint32_t unit)
{
    mz_span span = {.struct_bytes = sizeof span};
    must("weights", mz_wait_weights(handle, unit, &span));
    check("weight size", span.bytes == UNIT_BYTES);
    const unsigned char *bytes = span.data;
    for (size_t index = 0; index < UNIT_BYTES; index++)
        check("weight bytes", bytes[index] == weight_byte(unit, index));
    must("release weights", mz_release_weights(handle, unit));
}

static void evict_all(void)
{
    mz_report report = {.struct_bytes = sizeof report};
    must("evict", mz_evict(handle, UINT64_MAX, 0, &report));
    check("all is evicted", report.stop == MZ_STOP_EXHAUSTED && report.leased == 0);
    check("nothing failed", report.error == MZ_OK);
}

// One pass of compute over all layers: writes the context, or only looks at it.
static void pass(int writes)
{
    must("pass", mz_restore_begin(handle, TOKENS));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        check_weights(layer);
        if (writes)
            write_layer(layer);
        check_layer(layer);
    }
    check_weights(LAYERS);
    must("commit", mz_restore_end(handle, TOKENS));
}

#endif
