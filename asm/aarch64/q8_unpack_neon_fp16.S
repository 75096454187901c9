// size_t mz_q8_unpack_neon_fp16(const uint16_t *scales, const int8_t *codes, uint16_t *values,
//                               size_t groups);
//
// Multiplies 8-bit codes by their group's step and rounds to F16; a group is 64 codes and one scale
// word. Stops at the first word with the top bit set, which is no step, and returns the number of
// groups before it.
// AAPCS64. Needs NEON with half-precision arithmetic; any alignment, any number of groups.
// Clobbers x0-x5, v0-v5, v16-v23 and flags; uses no stack.
//
// In F16 1152 plus a code is exact and has the code in its low bits: adding the code, widened, to
// the bits of 1152 and subtracting 1152 as a number converts it, and any vector unit can do both;
// few have a converter. The product is exact before its one rounding.
// Cost: about 16 cycles for 64 values with two vector units, 9 with four.

#include "common.h"

#define SCALES  x0
#define CODES   x1
#define VALUES  x2
#define GROUPS  x3
#define START   x4
#define STEP    v4.8h
#define OFFSET  v5.8h

    .arch   armv8.2-a+fp16

.macro EACH operation, operand
    .irp    register, v16.8h, v17.8h, v18.8h, v19.8h, v20.8h, v21.8h, v22.8h, v23.8h
    \operation \register, \register, \operand
    .endr
.endm

FUNCTION mz_q8_unpack_neon_fp16
    mov     START, SCALES
    cbz     GROUPS, .Ldone
    mov     w5, #0x6480             // 1152
    dup     OFFSET, w5

.Lgroup:
    ldrh    w5, [SCALES]
    tbnz    w5, #15, .Ldone
    ld1r    {STEP}, [SCALES], #2
    ldp     q0, q1, [CODES]
    ldp     q2, q3, [CODES, #32]
    saddw   v16.8h, OFFSET, v0.8b
    saddw2  v17.8h, OFFSET, v0.16b
    saddw   v18.8h, OFFSET, v1.8b
    saddw2  v19.8h, OFFSET, v1.16b
    saddw   v20.8h, OFFSET, v2.8b
    saddw2  v21.8h, OFFSET, v2.16b
    saddw   v22.8h, OFFSET, v3.8b
    saddw2  v23.8h, OFFSET, v3.16b
    EACH    fsub, OFFSET
    EACH    fmul, STEP
    stp     q16, q17, [VALUES]
    stp     q18, q19, [VALUES, #32]
    stp     q20, q21, [VALUES, #64]
    stp     q22, q23, [VALUES, #96]
    add     CODES, CODES, #64
    add     VALUES, VALUES, #128
    subs    GROUPS, GROUPS, #1
    b.ne    .Lgroup
.Ldone:
    sub     x0, SCALES, START
    lsr     x0, x0, #1
    ret
END_FUNCTION mz_q8_unpack_neon_fp16
