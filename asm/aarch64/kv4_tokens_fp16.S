// void mz_kv4_tokens_fp16(const uint16_t *scales, const uint8_t upper[2][32],
//                         const uint8_t *nibbles, uint16_t *values, size_t channels,
//                         size_t tokens);
//
// Decodes a group of 32 channels of K in up to 8 tokens. `scales` has the channels' least values as
// F16, 256 numbers further on their greatest ones, another 256 further on their steps. `upper` has
// bits 4 and 5 of the codes, one byte a channel, the first token's in the highest bit; the channels
// of low nibbles come before those of high ones. A token has `channels` values and half as many
// bytes.
// AAPCS64. Needs NEON with half-precision arithmetic; any alignment, 0 to 8 tokens.
// Clobbers x2, x3, x5-x7, v0-v7, v16-v31 and flags; saves d8.
//
// Bits 4 and 5 of a code are brought side by side once, those of four tokens in one byte, of which
// they are the highest in turn; an insertion joins them to a nibble. A code becomes a number as in
// mz_q8_unpack_neon_fp16: added to the bits of 1024, which is then subtracted. The least values,
// which the fused additions overwrite, are loaded each time. Two tokens run at once, so that a core
// which executes in order need not wait.
// Cost: about 32 cycles for 64 values with two vector units, 16 with four.

#include "common.h"

#define SCALES  x0
#define UPPER   x1
#define NIBBLES x2
#define VALUES  x3
#define CHANNELS x4
#define TOKENS  x5
#define SECOND  x6              /* values of the second token */
#define STRIDE  x7              /* bytes of a token's nibbles */
#define EVEN_A  v16             /* the upper bits of tokens 0, 2, 4, 6; channels 0 to 15 */
#define EVEN_B  v17
#define ODD_A   v18
#define ODD_B   v19
#define OFFSET  v20
#define FIRST_4 v0, v1, v2, v3
#define SECOND_4 v8, v21, v22, v23

    .arch   armv8.2-a+fp16

// From nibbles in \a codes of 32 channels in \b and \c; \a and \d change.
.macro CODES upper_a, upper_b, a, b, c, d
    ushr    \d\().16b, \a\().16b, #4
    zip1    \b\().4s, \a\().4s, \d\().4s
    zip2    \c\().4s, \a\().4s, \d\().4s
    ushr    \a\().16b, \upper_a\().16b, #6
    ushr    \d\().16b, \upper_b\().16b, #6
    shl     \upper_a\().16b, \upper_a\().16b, #2
    shl     \upper_b\().16b, \upper_b\().16b, #2
    sli     \b\().16b, \a\().16b, #4
    sli     \c\().16b, \d\().16b, #4
.endm

// From those 1024 more than each of them, in F16, in all four.
.macro NUMBERS a, b, c, d
    uaddw   \a\().8h, OFFSET.8h, \b\().8b
    uaddw2  \b\().8h, OFFSET.8h, \b\().16b
    uaddw2  \d\().8h, OFFSET.8h, \c\().16b
    uaddw   \c\().8h, OFFSET.8h, \c\().8b
.endm

.macro EACH operation, a, b, c, d, e, f, g, h
    \operation \a\().8h, \a\().8h, \e\().8h
    \operation \b\().8h, \b\().8h, \f\().8h
    \operation \c\().8h, \c\().8h, \g\().8h
    \operation \d\().8h, \d\().8h, \h\().8h
.endm

// From those the values.
.macro VALUE a, b, c, d
    ldp     q24, q25, [SCALES]
    ldp     q26, q27, [SCALES, #32]
    EACH    fsub, \a, \b, \c, \d, OFFSET, OFFSET, OFFSET, OFFSET
    fmla    v24.8h, \a\().8h, v4.8h
    fmla    v25.8h, \b\().8h, v5.8h
    fmla    v26.8h, \c\().8h, v6.8h
    fmla    v27.8h, \d\().8h, v7.8h
    fmin    \a\().8h, v24.8h, v28.8h
    fmin    \b\().8h, v25.8h, v29.8h
    fmin    \c\().8h, v26.8h, v30.8h
    fmin    \d\().8h, v27.8h, v31.8h
.endm

FUNCTION mz_kv4_tokens_fp16
    cbz     TOKENS, .Lnone
    str     d8, [sp, #-16]!
    .cfi_adjust_cfa_offset 16
    .cfi_rel_offset d8, 0
    ldp     q0, q1, [UPPER]
    ldp     q2, q3, [UPPER, #32]
    movi    v21.16b, #0xaa
    zip1    ODD_A.4s, v0.4s, v1.4s
    zip2    ODD_B.4s, v0.4s, v1.4s
    zip1    v22.4s, v2.4s, v3.4s
    zip2    v23.4s, v2.4s, v3.4s
    ushr    EVEN_A.16b, ODD_A.16b, #1
    ushr    EVEN_B.16b, ODD_B.16b, #1
    shl     v0.16b, v22.16b, #1
    shl     v1.16b, v23.16b, #1
    bit     EVEN_A.16b, v22.16b, v21.16b
    bit     EVEN_B.16b, v23.16b, v21.16b
    bit     ODD_A.16b, v0.16b, v21.16b
    bit     ODD_B.16b, v1.16b, v21.16b
    movi    OFFSET.8h, #0x64, lsl #8        // 1024
    add     x6, SCALES, #512
    add     x7, SCALES, #1024
    ldp     q28, q29, [x6]
    ldp     q30, q31, [x6, #32]
    ldp     q4, q5, [x7]
    ldp     q6, q7, [x7, #32]
    lsr     STRIDE, CHANNELS, #1
    subs    TOKENS, TOKENS, #2
    b.lo    .Llast

.Lpair:
    ldr     q0, [NIBBLES]
    ldr     q8, [NIBBLES, STRIDE]
    add     SECOND, VALUES, CHANNELS, lsl #1
    add     NIBBLES, NIBBLES, CHANNELS
    CODES   EVEN_A, EVEN_B, FIRST_4
    CODES   ODD_A, ODD_B, SECOND_4
    NUMBERS FIRST_4
    NUMBERS SECOND_4
    VALUE   FIRST_4
    VALUE   SECOND_4
    stp     q0, q1, [VALUES]
    stp     q2, q3, [VALUES, #32]
    stp     q8, q21, [SECOND]
    stp     q22, q23, [SECOND, #32]
    add     VALUES, VALUES, CHANNELS, lsl #2
    subs    TOKENS, TOKENS, #2
    b.hs    .Lpair

.Llast:
    tbz     TOKENS, #0, .Ldone
    ldr     q0, [NIBBLES]
    CODES   EVEN_A, EVEN_B, FIRST_4
    NUMBERS FIRST_4
    VALUE   FIRST_4
    stp     q0, q1, [VALUES]
    stp     q2, q3, [VALUES, #32]
.Ldone:
    ldr     d8, [sp], #16
    .cfi_adjust_cfa_offset -16
    .cfi_restore d8
.Lnone:
    ret
END_FUNCTION mz_kv4_tokens_fp16
