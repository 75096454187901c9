// void mz_q8_unpack_avx2(const uint16_t *scales, const int8_t *codes, uint16_t *values,
//                        size_t groups);
//
// Multiplies 8-bit codes by their group's step and rounds to F16; a group is 64 codes and one scale
// word: the step, or with the top bit set 127 steps, of which each is then at least 2^-24.
// System V calling convention. Needs AVX2 and F16C; any alignment, any number of groups.
// Clobbers rcx, rdx, rsi, rdi, ymm0-ymm8 and flags; uses no stack.
//
// A shuffle puts each code into the top byte of a word, which is then 2^24 times the code: unlike a
// sign extension it stays within its lane. The step is 2^-24 times as great in return; neither
// changes how the product rounds. Both forms of the step are computed, and the word's sign selects.
// The lines that are written soon are asked for, so that storing does not wait for their old
// contents; a prefetch never faults, wherever the line lies.
// Cost: 14 to 20 cycles for 64 values.

#include "common.h"

#define SCALES  rdi
#define CODES   rsi
#define VALUES  rdx
#define GROUPS  rcx
#define STEP    ymm0
#define FIRST   ymm3
#define SECOND  ymm4
#define MAGNITUDE ymm5
#define PER_STEP ymm6
#define PER_127 ymm7
#define LEAST   ymm8
#define AHEAD   2048

    .intel_syntax noprefix

.macro BLOCK index
    vbroadcasti128 ymm1, xmmword ptr [CODES + 16 * \index]
    vpshufb ymm2, ymm1, FIRST
    vpshufb ymm1, ymm1, SECOND
    vcvtdq2ps ymm2, ymm2
    vcvtdq2ps ymm1, ymm1
    vmulps  ymm2, ymm2, STEP
    vmulps  ymm1, ymm1, STEP
    vcvtps2ph xmmword ptr [VALUES + 32 * \index], ymm2, 0
    vcvtps2ph xmmword ptr [VALUES + 32 * \index + 16], ymm1, 0
.endm

FUNCTION mz_q8_unpack_avx2
    test    GROUPS, GROUPS
    jz      .Ldone
    vmovdqa FIRST, ymmword ptr [rip + .Lfirst]
    vmovdqa SECOND, ymmword ptr [rip + .Lsecond]
    vbroadcastss MAGNITUDE, dword ptr [rip + .Lmagnitude]
    vbroadcastss PER_STEP, dword ptr [rip + .Lper_step]
    vbroadcastss PER_127, dword ptr [rip + .Lper_127]
    vbroadcastss LEAST, dword ptr [rip + .Lleast]

.Lgroup:
    prefetchw [VALUES + AHEAD]
    prefetchw [VALUES + AHEAD + 64]
    vpbroadcastw xmm0, word ptr [SCALES]
    vcvtph2ps ymm0, xmm0
    vandps  ymm1, ymm0, MAGNITUDE
    vmulps  ymm2, ymm1, PER_127
    vmulps  ymm1, ymm1, PER_STEP
    vmaxps  ymm2, LEAST, ymm2       // of a NaN the second operand
    vblendvps STEP, ymm1, ymm2, ymm0
    BLOCK   0
    BLOCK   1
    BLOCK   2
    BLOCK   3
    add     SCALES, 2
    add     CODES, 64
    add     VALUES, 128
    dec     GROUPS
    jnz     .Lgroup
    vzeroupper
.Ldone:
    ret
END_FUNCTION mz_q8_unpack_avx2

    .section .rodata
    .balign 32
.Lfirst:                            // codes 0-3 and 4-7
    .irp    code, 0, 1, 2, 3, 4, 5, 6, 7
    .byte   0x80, 0x80, 0x80, \code
    .endr
.Lsecond:
    .irp    code, 8, 9, 10, 11, 12, 13, 14, 15
    .byte   0x80, 0x80, 0x80, \code
    .endr
.Lmagnitude:
    .long   0x7fffffff
.Lper_step:
    .long   0x33800000              // 2^-24
.Lper_127:
    .long   0x30010204              // the F32 next to 1/127, times 2^-24
.Lleast:
    .long   0x27800000              // 2^-24, times 2^-24
