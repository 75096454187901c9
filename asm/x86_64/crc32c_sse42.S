// uint32_t mz_crc32c_sse42(uint32_t state, const uint8_t *bytes, size_t length);
//
// Continues a CRC-32C (reflected polynomial 0x82F63B78); state 0 starts one.
// System V calling convention. Needs SSE4.2 and PCLMULQDQ; any alignment, any length.
// Clobbers rax, rcx, rdx, rsi, r8-r11, xmm0-xmm3 and flags; uses no stack.
//
// crc32 takes 3 cycles but starts every cycle, so blocks of 3 * STREAM bytes run as three streams
// whose checksums are then joined: a checksum followed by n bytes is its product with x^(8n).
// Multiplying by x^(8n - 33) without carry and feeding the product to crc32 as data gives that
// product reduced (the product of two reflected words lacks one x, the instruction adds x^32).
// The rest goes through one stream of 8-byte words, then single bytes.
// Cost: about 4 cycles for 32 bytes in blocks, 12 in the rest.

#include "common.h"

#define STREAM 1024

#define FIRST  rax
#define FIRSTd eax
#define BYTES  rsi
#define LENGTH rdx
#define SECOND r8
#define THIRD  r9
#define STEPS  ecx
#define WORD   r10

    .intel_syntax noprefix

FUNCTION mz_crc32c_sse42
    mov     FIRSTd, edi
    not     FIRSTd
    cmp     LENGTH, 3 * STREAM
    jb      .Lwords
    movq    xmm2, qword ptr [rip + .Lover_two_streams]
    movq    xmm3, qword ptr [rip + .Lover_one_stream]

.Lblock:
    xor     r8d, r8d
    xor     r9d, r9d
    mov     STEPS, STREAM / 8
.Lstep:
    crc32   FIRST, qword ptr [BYTES]
    crc32   SECOND, qword ptr [BYTES + STREAM]
    crc32   THIRD, qword ptr [BYTES + 2 * STREAM]
    add     BYTES, 8
    dec     STEPS
    jnz     .Lstep
    movd    xmm0, FIRSTd
    movd    xmm1, r8d
    pclmulqdq xmm0, xmm2, 0
    pclmulqdq xmm1, xmm3, 0
    pxor    xmm0, xmm1
    movq    WORD, xmm0
    xor     FIRSTd, FIRSTd
    crc32   FIRST, WORD
    xor     FIRSTd, r9d
    add     BYTES, 2 * STREAM
    sub     LENGTH, 3 * STREAM
    cmp     LENGTH, 3 * STREAM
    jae     .Lblock

.Lwords:
    sub     LENGTH, 8
    jb      .Ltail
.Lword:
    crc32   FIRST, qword ptr [BYTES]
    add     BYTES, 8
    sub     LENGTH, 8
    jae     .Lword

.Ltail:
    and     edx, 7
    jz      .Ldone
.Lbyte:
    crc32   FIRSTd, byte ptr [BYTES]
    inc     BYTES
    dec     edx
    jnz     .Lbyte
.Ldone:
    not     FIRSTd
    ret
END_FUNCTION mz_crc32c_sse42

    .section .rodata
    .balign 8
.Lover_two_streams:             // x^(16 * STREAM - 33) mod P, reflected
    .quad   0xa51b6135
.Lover_one_stream:              // x^(8 * STREAM - 33) mod P, reflected
    .quad   0x170076fa
