// void mz_huffman_run_bmi2(const uint8_t *bytes, size_t last, struct lane lanes[4],
//                          uint8_t *symbols);
//
// Reads codes in four lanes as long as no lane is at its end. A lane is {bit, at, end, table}, each
// 8 bytes: the next bit of `bytes`, the place of the next symbol in `symbols` and where the row's
// symbols end there, and 1024 entries {symbols[6], bits, count}. `last` is the place of the last
// eight bytes; loads do not go past it.
// System V calling convention. Needs BMI2. Each row has room for 37 symbols behind its end.
// Clobbers rax, rcx, rdx, rsi, rdi, r8-r11 and flags; saves the other registers that it uses.
//
// For each lane in turn, one big-endian load feeds five look-ups of ten bits: all symbols of an
// entry are stored, whatever their number, and the next entry's go behind the valid ones. The lanes
// do not wait for each other; out-of-order execution overlaps them. A lane's own chain takes about
// 48 cycles: per look-up a shift, a load and a shift. The bits of an entry are loaded by
// themselves, which is a cycle shorter than to shift them out of the entry.
// Cost: about 230 instructions for 60 to 100 symbols.

#include "common.h"

#define BYTES   rdi
#define LANES   rdx
#define SYMBOLS rcx
#define BIT_0   r8
#define BIT_1   r9
#define BIT_2   r10
#define BIT_3   r11
#define AT_0    rbx
#define AT_1    rbp
#define AT_2    r12
#define AT_3    r13
#define WINDOW  rax
#define ENTRY   r14
#define TAKEN   rsi
#define TAKENd  esi
#define TABLE   r15
#define LAST    qword ptr [rsp]

    .intel_syntax noprefix

.macro LOOK_UP bit, at
    mov     ENTRY, WINDOW
    shr     ENTRY, 54
    movzx   TAKENd, byte ptr [TABLE + 8 * ENTRY + 6]
    mov     ENTRY, qword ptr [TABLE + 8 * ENTRY]
    shlx    WINDOW, WINDOW, TAKEN
    mov     qword ptr [SYMBOLS + \at], ENTRY
    add     \bit, TAKEN
    shr     ENTRY, 56
    add     \at, ENTRY
.endm

.macro READ lane, bit, at
    mov     TAKEN, \bit
    shr     TAKEN, 3
    cmp     TAKEN, LAST
    cmova   TAKEN, LAST
    mov     WINDOW, qword ptr [BYTES + TAKEN]
    mov     TABLE, qword ptr [LANES + 32 * \lane + 24]
    shl     TAKEN, 3
    mov     ENTRY, \bit
    sub     ENTRY, TAKEN
    bswap   WINDOW
    shlx    WINDOW, WINDOW, ENTRY
    .rept 5
    LOOK_UP \bit, \at
    .endr
.endm

.macro CHECK lane, at
    cmp     \at, qword ptr [LANES + 32 * \lane + 16]
    jae     .Ldone
.endm

.macro SAVE register
    push    \register
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset \register, 0
.endm

.macro RESTORE register
    pop     \register
    .cfi_adjust_cfa_offset -8
    .cfi_restore \register
.endm

FUNCTION mz_huffman_run_bmi2
    SAVE    rbx
    SAVE    rbp
    SAVE    r12
    SAVE    r13
    SAVE    r14
    SAVE    r15
    push    rsi
    .cfi_adjust_cfa_offset 8
    mov     BIT_0, qword ptr [LANES]
    mov     AT_0, qword ptr [LANES + 8]
    mov     BIT_1, qword ptr [LANES + 32]
    mov     AT_1, qword ptr [LANES + 40]
    mov     BIT_2, qword ptr [LANES + 64]
    mov     AT_2, qword ptr [LANES + 72]
    mov     BIT_3, qword ptr [LANES + 96]
    mov     AT_3, qword ptr [LANES + 104]
    jmp     .Lcheck

    .balign 32
.Lread:
    READ    0, BIT_0, AT_0
    READ    1, BIT_1, AT_1
    READ    2, BIT_2, AT_2
    READ    3, BIT_3, AT_3
.Lcheck:
    CHECK   0, AT_0
    CHECK   1, AT_1
    CHECK   2, AT_2
    CHECK   3, AT_3
    jmp     .Lread

.Ldone:
    mov     qword ptr [LANES], BIT_0
    mov     qword ptr [LANES + 8], AT_0
    mov     qword ptr [LANES + 32], BIT_1
    mov     qword ptr [LANES + 40], AT_1
    mov     qword ptr [LANES + 64], BIT_2
    mov     qword ptr [LANES + 72], AT_2
    mov     qword ptr [LANES + 96], BIT_3
    mov     qword ptr [LANES + 104], AT_3
    pop     rsi
    .cfi_adjust_cfa_offset -8
    RESTORE r15
    RESTORE r14
    RESTORE r13
    RESTORE r12
    RESTORE rbp
    RESTORE rbx
    ret
END_FUNCTION mz_huffman_run_bmi2
