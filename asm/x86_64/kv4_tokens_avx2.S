// void mz_kv4_tokens_avx2(const float *scales, const uint8_t upper[2][32], const uint8_t *nibbles,
//                         uint16_t *values, size_t channels, size_t tokens);
//
// Decodes a group of 32 channels of K in up to 8 tokens. `scales` has the channels' least values,
// 256 floats further on their greatest ones, another 256 further on their steps. `upper` has bits 4
// and 5 of the codes, one byte a channel, the first token's in the highest bit; the channels of low
// nibbles come before those of high ones. A token has `channels` values and half as many bytes.
// System V calling convention. Needs AVX2, F16C, FMA; any alignment, 0 to 8 tokens.
// Clobbers rcx, rdx, r8-r10, ymm0-ymm15 and flags; uses no stack.
//
// Bits 4 and 5 of a code are brought side by side once, those of four tokens in one byte, so that
// each token takes a shift, a mask and an addition to both. Shuffles turn four bytes a lane into
// integers. Lines are asked for before they are written.
// Cost: about 10 cycles for 32 values.

#include "common.h"

#define SCALES  rdi
#define UPPER   rsi
#define NIBBLES rdx
#define VALUES  rcx
#define STRIDE  r8              /* bytes of a token's nibbles */
#define TOKENS  r9
#define VALUES_STRIDE r10
#define MIN     0
#define MAX     1024
#define STEP    2048
#define EVEN    ymm5            /* the upper bits of tokens 0, 2, 4, 6 */
#define ODD     ymm6
#define HALVES  ymm7
#define NIBBLE  ymm8
#define PAIR    ymm9
#define PICK_0  ymm10
#define PICK_1  ymm11
#define STEP_0  ymm12
#define STEP_1  ymm13
#define STEP_2  ymm14
#define STEP_3  ymm15

    .intel_syntax noprefix

// Nothing is shifted where the shift is 0.
.macro TOKEN upper, left, right
    vbroadcasti128 ymm0, xmmword ptr [NIBBLES]
    .if \left
    vpsllw  ymm1, \upper, \left
    vpand   ymm1, ymm1, PAIR
    .elseif \right
    vpsrlw  ymm1, \upper, \right
    vpand   ymm1, ymm1, PAIR
    .else
    vpand   ymm1, \upper, PAIR
    .endif
    vpsrlvq ymm0, ymm0, HALVES
    vpand   ymm0, ymm0, NIBBLE
    vpor    ymm0, ymm0, ymm1
    prefetchw [VALUES + 2048]
    vpshufb ymm1, ymm0, PICK_0
    vpshufb ymm2, ymm0, PICK_1
    vpshufb ymm3, ymm0, ymmword ptr [rip + .Lpick_2]
    vpshufb ymm4, ymm0, ymmword ptr [rip + .Lpick_3]
    vcvtdq2ps ymm1, ymm1
    vcvtdq2ps ymm2, ymm2
    vcvtdq2ps ymm3, ymm3
    vcvtdq2ps ymm4, ymm4
    vfmadd213ps ymm1, STEP_0, ymmword ptr [SCALES + MIN]
    vfmadd213ps ymm2, STEP_1, ymmword ptr [SCALES + MIN + 32]
    vfmadd213ps ymm3, STEP_2, ymmword ptr [SCALES + MIN + 64]
    vfmadd213ps ymm4, STEP_3, ymmword ptr [SCALES + MIN + 96]
    vminps  ymm1, ymm1, ymmword ptr [SCALES + MAX]
    vminps  ymm2, ymm2, ymmword ptr [SCALES + MAX + 32]
    vminps  ymm3, ymm3, ymmword ptr [SCALES + MAX + 64]
    vminps  ymm4, ymm4, ymmword ptr [SCALES + MAX + 96]
    vcvtps2ph xmmword ptr [VALUES], ymm1, 0
    vcvtps2ph xmmword ptr [VALUES + 16], ymm2, 0
    vcvtps2ph xmmword ptr [VALUES + 32], ymm3, 0
    vcvtps2ph xmmword ptr [VALUES + 48], ymm4, 0
    add     NIBBLES, STRIDE
    add     VALUES, VALUES_STRIDE
    dec     TOKENS
    jz      .Ldone
.endm

FUNCTION mz_kv4_tokens_avx2
    test    TOKENS, TOKENS
    jz      .Lnone
    lea     VALUES_STRIDE, [2 * r8]
    shr     STRIDE
    vmovdqu ymm0, ymmword ptr [UPPER]
    vmovdqu ymm1, ymmword ptr [UPPER + 32]
    vmovdqa ymm2, ymmword ptr [rip + .Lodd_bits]
    vpand   ODD, ymm0, ymm2
    vpand   ymm3, ymm1, ymm2
    vpsllw  ymm3, ymm3, 1
    vpor    ODD, ODD, ymm3
    vpandn  EVEN, ymm2, ymm0
    vpandn  ymm3, ymm2, ymm1
    vpsrlw  EVEN, EVEN, 1
    vpor    EVEN, EVEN, ymm3
    vmovdqa HALVES, ymmword ptr [rip + .Lhalves]
    vmovdqa NIBBLE, ymmword ptr [rip + .Lnibble]
    vmovdqa PAIR, ymmword ptr [rip + .Lpair]
    vmovdqa PICK_0, ymmword ptr [rip + .Lpick_0]
    vmovdqa PICK_1, ymmword ptr [rip + .Lpick_1]
    vmovups STEP_0, ymmword ptr [SCALES + STEP]
    vmovups STEP_1, ymmword ptr [SCALES + STEP + 32]
    vmovups STEP_2, ymmword ptr [SCALES + STEP + 64]
    vmovups STEP_3, ymmword ptr [SCALES + STEP + 96]
    TOKEN   EVEN, 0, 2
    TOKEN   ODD, 0, 2
    TOKEN   EVEN, 0, 0
    TOKEN   ODD, 0, 0
    TOKEN   EVEN, 2, 0
    TOKEN   ODD, 2, 0
    TOKEN   EVEN, 4, 0
    TOKEN   ODD, 4, 0
.Ldone:
    vzeroupper
.Lnone:
    ret
END_FUNCTION mz_kv4_tokens_avx2

    .section .rodata
    .balign 32
.macro PICK first
    .rept   2
    .irp    byte, 0, 1, 2, 3
    .byte   \first + \byte, 0x80, 0x80, 0x80
    .endr
    .endr
.endm
.Lpick_0:
    PICK    0
.Lpick_1:
    PICK    4
.Lpick_2:
    PICK    8
.Lpick_3:
    PICK    12
.Lhalves:
    .quad   0, 0, 4, 4
.Lnibble:
    .fill   32, 1, 0x0f
.Lpair:
    .fill   32, 1, 0x30
.Lodd_bits:
    .fill   32, 1, 0x55
