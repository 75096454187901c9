// void mz_huffman_run(const uint8_t *bytes, size_t last, struct lane lanes[4], uint8_t *symbols);
//
// Reads codes in four lanes as long as no lane is at its end. A lane is {bit, at, end, table}, each
// 8 bytes: the next bit of `bytes`, the place of the next symbol in `symbols` and where the row's
// symbols end there, and 1024 entries {symbols[6], bits, count}. `last` is the place of the last
// eight bytes; loads do not go past it.
// AAPCS64, little-endian, base instructions only. Each row has room for 37 symbols behind its end.
// Clobbers x0-x17 and flags; saves the other registers that it uses. x18 is left alone.
//
// For each lane in turn, one big-endian load feeds five look-ups of ten bits: all symbols of an
// entry are stored, whatever their number, and the next entry's go behind the valid ones. The lanes
// do not wait for each other; look-up by look-up their instructions alternate, so that a core which
// executes in order overlaps them too.
// Cost: about 170 instructions for 60 to 100 symbols.

#include "common.h"

#define BYTES   x0
#define LAST    x1
#define LANES   x2
#define SYMBOLS x3
#define BIT_0   x4
#define BIT_1   x5
#define BIT_2   x6
#define BIT_3   x7
#define AT_0    x8              /* addresses */
#define AT_1    x9
#define AT_2    x10
#define AT_3    x11
#define END_0   x12
#define END_1   x13
#define END_2   x14
#define END_3   x15
#define TABLE_0 x16
#define TABLE_1 x17
#define TABLE_2 x19
#define TABLE_3 x20
#define WORD_0  x21
#define WORD_1  x22
#define WORD_2  x23
#define WORD_3  x24
#define ENTRY_0 x25
#define ENTRY_1 x26
#define ENTRY_2 x27
#define ENTRY_3 x28
#define TAKEN   x29

.macro LOAD bit, word, entry
    lsr     \entry, \bit, #3
    cmp     \entry, LAST
    csel    \entry, \entry, LAST, ls
    ldr     \word, [BYTES, \entry]
    sub     \entry, \bit, \entry, lsl #3
    rev     \word, \word
    lsl     \word, \word, \entry
.endm

.macro LOOK_UP word, entry, table
    lsr     \entry, \word, #54
    ldr     \entry, [\table, \entry, lsl #3]
.endm

.macro ADVANCE bit, at, word, entry
    str     \entry, [\at]
    ubfx    TAKEN, \entry, #48, #8
    add     \at, \at, \entry, lsr #56
    lsl     \word, \word, TAKEN
    add     \bit, \bit, TAKEN
.endm

.macro ENTER lane, bit, at, end, table
    ldp     \bit, \at, [LANES, #32 * \lane]
    ldp     \end, \table, [LANES, #32 * \lane + 16]
    add     \at, \at, SYMBOLS
    add     \end, \end, SYMBOLS
.endm

.macro LEAVE lane, bit, at
    sub     \at, \at, SYMBOLS
    stp     \bit, \at, [LANES, #32 * \lane]
.endm

.macro SAVE first, second, offset
    stp     \first, \second, [sp, #\offset]
    .cfi_rel_offset \first, \offset
    .cfi_rel_offset \second, \offset + 8
.endm

.macro RESTORE first, second, offset
    ldp     \first, \second, [sp, #\offset]
    .cfi_restore \first
    .cfi_restore \second
.endm

FUNCTION mz_huffman_run
    sub     sp, sp, #96
    .cfi_adjust_cfa_offset 96
    SAVE    x29, x30, 0
    SAVE    x19, x20, 16
    SAVE    x21, x22, 32
    SAVE    x23, x24, 48
    SAVE    x25, x26, 64
    SAVE    x27, x28, 80
    ENTER   0, BIT_0, AT_0, END_0, TABLE_0
    ENTER   1, BIT_1, AT_1, END_1, TABLE_1
    ENTER   2, BIT_2, AT_2, END_2, TABLE_2
    ENTER   3, BIT_3, AT_3, END_3, TABLE_3

.Lcheck:
    cmp     AT_0, END_0
    ccmp    AT_1, END_1, #2, lo     // with #2 the comparison says "not lower"
    ccmp    AT_2, END_2, #2, lo
    ccmp    AT_3, END_3, #2, lo
    b.hs    .Ldone
    LOAD    BIT_0, WORD_0, ENTRY_0
    LOAD    BIT_1, WORD_1, ENTRY_1
    LOAD    BIT_2, WORD_2, ENTRY_2
    LOAD    BIT_3, WORD_3, ENTRY_3
    .rept 5
    LOOK_UP WORD_0, ENTRY_0, TABLE_0
    LOOK_UP WORD_1, ENTRY_1, TABLE_1
    LOOK_UP WORD_2, ENTRY_2, TABLE_2
    LOOK_UP WORD_3, ENTRY_3, TABLE_3
    ADVANCE BIT_0, AT_0, WORD_0, ENTRY_0
    ADVANCE BIT_1, AT_1, WORD_1, ENTRY_1
    ADVANCE BIT_2, AT_2, WORD_2, ENTRY_2
    ADVANCE BIT_3, AT_3, WORD_3, ENTRY_3
    .endr
    b       .Lcheck

.Ldone:
    LEAVE   0, BIT_0, AT_0
    LEAVE   1, BIT_1, AT_1
    LEAVE   2, BIT_2, AT_2
    LEAVE   3, BIT_3, AT_3
    RESTORE x19, x20, 16
    RESTORE x21, x22, 32
    RESTORE x23, x24, 48
    RESTORE x25, x26, 64
    RESTORE x27, x28, 80
    RESTORE x29, x30, 0
    add     sp, sp, #96
    .cfi_adjust_cfa_offset -96
    ret
END_FUNCTION mz_huffman_run
