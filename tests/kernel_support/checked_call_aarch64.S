// uint64_t mz_test_checked_call(void *function, const uint64_t arguments[6], uint64_t *trashed);
//
// AAPCS64. Fills x19-x29 and d8-d15 with patterns, calls the function, and stores a mask of what it
// changed: bits 0-10 for x19-x29, bits 11-18 for d8-d15. A register's pattern is its bit number
// above a constant, so that two swapped registers are seen. For global_asm: no preprocessor.

    .text
    .globl mz_test_checked_call
    .hidden mz_test_checked_call
    .type mz_test_checked_call, %function
mz_test_checked_call:
    .cfi_startproc
    hint    #34                     // bti c
    stp     x29, x30, [sp, #-176]!
    .cfi_def_cfa_offset 176
    .cfi_offset 29, -176
    .cfi_offset 30, -168
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    stp     d8, d9, [sp, #96]
    stp     d10, d11, [sp, #112]
    stp     d12, d13, [sp, #128]
    stp     d14, d15, [sp, #144]
    str     x2, [sp, #160]

    .macro mz_test_pattern number
    mov     x17, #\number
    movk    x17, #0xB0B0, lsl #16
    movk    x17, #0xB0B0, lsl #48
    .endm
    .macro mz_test_fill register, number
    mz_test_pattern \number
    mov     \register, x17
    .endm
    .macro mz_test_fill_float register, number
    mz_test_pattern \number
    fmov    \register, x17
    .endm

    mz_test_fill x19, 0
    mz_test_fill x20, 1
    mz_test_fill x21, 2
    mz_test_fill x22, 3
    mz_test_fill x23, 4
    mz_test_fill x24, 5
    mz_test_fill x25, 6
    mz_test_fill x26, 7
    mz_test_fill x27, 8
    mz_test_fill x28, 9
    mz_test_fill x29, 10
    mz_test_fill_float d8, 11
    mz_test_fill_float d9, 12
    mz_test_fill_float d10, 13
    mz_test_fill_float d11, 14
    mz_test_fill_float d12, 15
    mz_test_fill_float d13, 16
    mz_test_fill_float d14, 17
    mz_test_fill_float d15, 18
    mov     x16, x0
    mov     x17, x1
    ldp     x0, x1, [x17]
    ldp     x2, x3, [x17, #16]
    ldp     x4, x5, [x17, #32]
    blr     x16
    mov     x16, xzr                // the mask

    .macro mz_test_check register, number
    mz_test_pattern \number
    cmp     \register, x17
    cset    x15, ne
    orr     x16, x16, x15, lsl #\number
    .endm
    .macro mz_test_check_float register, number
    fmov    x14, \register
    mz_test_check x14, \number
    .endm

    mz_test_check x19, 0
    mz_test_check x20, 1
    mz_test_check x21, 2
    mz_test_check x22, 3
    mz_test_check x23, 4
    mz_test_check x24, 5
    mz_test_check x25, 6
    mz_test_check x26, 7
    mz_test_check x27, 8
    mz_test_check x28, 9
    mz_test_check x29, 10
    mz_test_check_float d8, 11
    mz_test_check_float d9, 12
    mz_test_check_float d10, 13
    mz_test_check_float d11, 14
    mz_test_check_float d12, 15
    mz_test_check_float d13, 16
    mz_test_check_float d14, 17
    mz_test_check_float d15, 18
    ldr     x17, [sp, #160]
    str     x16, [x17]
    ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldp     d8, d9, [sp, #96]
    ldp     d10, d11, [sp, #112]
    ldp     d12, d13, [sp, #128]
    ldp     d14, d15, [sp, #144]
    ldp     x29, x30, [sp], #176
    .cfi_def_cfa_offset 0
    .cfi_restore 29
    .cfi_restore 30
    ret
    .cfi_endproc
    .size mz_test_checked_call, . - mz_test_checked_call

// Functions that break the first and the last rule, and one that breaks none.
    .globl mz_test_trash_first
    .hidden mz_test_trash_first
mz_test_trash_first:
    hint    #34
    add     x19, x19, #1
    ret

    .globl mz_test_trash_last
    .hidden mz_test_trash_last
mz_test_trash_last:
    hint    #34
    fneg    d15, d15
    ret

    .globl mz_test_trash_none
    .hidden mz_test_trash_none
mz_test_trash_none:
    hint    #34
    add     x0, x0, x1
    add     x0, x0, x2
    add     x0, x0, x3
    add     x0, x0, x4
    add     x0, x0, x5
    ret
