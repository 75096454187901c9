// uint32_t mz_crc32c_crc(uint32_t state, const uint8_t *bytes, size_t length);
//
// Continues a CRC-32C (reflected polynomial 0x82F63B78); state 0 starts one.
// AAPCS64. Needs FEAT_CRC32 and FEAT_PMULL; any alignment, any length.
// Clobbers x0-x14, v0-v3 and flags; uses no stack.
//
// crc32cx takes 2 or 3 cycles but starts every cycle, so blocks of 3 * STREAM bytes run as three
// streams whose checksums are then joined: a checksum followed by n bytes is its product with
// x^(8n). Multiplying by x^(8n - 33) without carry and feeding the product to crc32cx as data gives
// that product reduced (the product of two reflected words lacks one x, the instruction adds x^32).
// The rest goes through one stream of 8-byte words, then single bytes.
// Cost: about 4 cycles for 32 bytes in blocks, 8 to 12 in the rest (latencies as published by Arm).

#include "common.h"

#define STREAM 1024

#define FIRST    w0
#define FIRSTx   x0
#define BYTES    x1
#define LENGTH   x2
#define SECOND   w3
#define THIRD    w4
#define BYTES_2  x5
#define BYTES_3  x6
#define STEPS    w7

    .arch   armv8-a+crc+crypto

FUNCTION mz_crc32c_crc
    mvn     FIRST, w0
    cmp     LENGTH, #3 * STREAM
    b.lo    .Lwords
    mov     w8, #0x6135             // x^(16 * STREAM - 33) mod P, reflected
    movk    w8, #0xa51b, lsl #16
    fmov    d2, x8
    mov     w8, #0x76fa             // x^(8 * STREAM - 33) mod P, reflected
    movk    w8, #0x1700, lsl #16
    fmov    d3, x8

.Lblock:
    add     BYTES_2, BYTES, #STREAM
    add     BYTES_3, BYTES, #2 * STREAM
    mov     SECOND, wzr
    mov     THIRD, wzr
    mov     STEPS, #STREAM / 16
.Lstep:
    ldp     x9, x10, [BYTES], #16
    ldp     x11, x12, [BYTES_2], #16
    ldp     x13, x14, [BYTES_3], #16
    crc32cx FIRST, FIRST, x9
    crc32cx SECOND, SECOND, x11
    crc32cx THIRD, THIRD, x13
    crc32cx FIRST, FIRST, x10
    crc32cx SECOND, SECOND, x12
    crc32cx THIRD, THIRD, x14
    subs    STEPS, STEPS, #1
    b.ne    .Lstep
    fmov    d0, FIRSTx              // crc32cx cleared the upper half
    fmov    d1, x3
    pmull   v0.1q, v0.1d, v2.1d
    pmull   v1.1q, v1.1d, v3.1d
    eor     v0.16b, v0.16b, v1.16b
    fmov    x8, d0
    crc32cx FIRST, wzr, x8
    eor     FIRST, FIRST, THIRD
    mov     BYTES, BYTES_3
    sub     LENGTH, LENGTH, #3 * STREAM
    cmp     LENGTH, #3 * STREAM
    b.hs    .Lblock

.Lwords:
    subs    LENGTH, LENGTH, #8
    b.lo    .Ltail
.Lword:
    ldr     x8, [BYTES], #8
    crc32cx FIRST, FIRST, x8
    subs    LENGTH, LENGTH, #8
    b.hs    .Lword

.Ltail:
    ands    LENGTH, LENGTH, #7
    b.eq    .Ldone
.Lbyte:
    ldrb    w8, [BYTES], #1
    crc32cb FIRST, FIRST, w8
    subs    LENGTH, LENGTH, #1
    b.ne    .Lbyte
.Ldone:
    mvn     FIRST, FIRST
    ret
END_FUNCTION mz_crc32c_crc
