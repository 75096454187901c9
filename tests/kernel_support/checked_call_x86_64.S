// uint64_t mz_test_checked_call(void *function, const uint64_t arguments[6], uint64_t *trashed);
//
// System V. Fills rbx, rbp and r12-r15 with patterns, calls the function, and stores a mask of what
// it changed: bits 0-5 for those registers in this order, bit 6 for a direction flag left set.
// For global_asm: Intel syntax, no preprocessor.

    .text
    .globl mz_test_checked_call
    .hidden mz_test_checked_call
    .type mz_test_checked_call, @function
mz_test_checked_call:
    .cfi_startproc
    endbr64
    push    rbx
    push    rbp
    push    r12
    push    r13
    push    r14
    push    r15
    push    rdx                     // seven pushes: the stack is aligned for the call
    .cfi_adjust_cfa_offset 56
    mov     rax, rdi
    mov     r10, rsi
    mov     rdi, [r10]
    mov     rsi, [r10 + 8]
    mov     rdx, [r10 + 16]
    mov     rcx, [r10 + 24]
    mov     r8, [r10 + 32]
    mov     r9, [r10 + 40]
    movabs  rbx, 0xB0B0B0B0B0B0B001
    movabs  rbp, 0xB0B0B0B0B0B0B002
    movabs  r12, 0xB0B0B0B0B0B0B003
    movabs  r13, 0xB0B0B0B0B0B0B004
    movabs  r14, 0xB0B0B0B0B0B0B005
    movabs  r15, 0xB0B0B0B0B0B0B006
    call    rax
    xor     ecx, ecx                // the mask

    .macro mz_test_check register, pattern, bit
    movabs  rdx, \pattern
    cmp     \register, rdx
    setne   dl
    movzx   edx, dl
    shl     edx, \bit
    or      ecx, edx
    .endm

    mz_test_check rbx, 0xB0B0B0B0B0B0B001, 0
    mz_test_check rbp, 0xB0B0B0B0B0B0B002, 1
    mz_test_check r12, 0xB0B0B0B0B0B0B003, 2
    mz_test_check r13, 0xB0B0B0B0B0B0B004, 3
    mz_test_check r14, 0xB0B0B0B0B0B0B005, 4
    mz_test_check r15, 0xB0B0B0B0B0B0B006, 5
    pushfq
    pop     rdx
    and     edx, 0x400
    shr     edx, 4
    or      ecx, edx
    cld
    pop     rdx
    mov     [rdx], rcx
    pop     r15
    pop     r14
    pop     r13
    pop     r12
    pop     rbp
    pop     rbx
    .cfi_adjust_cfa_offset -56
    ret
    .cfi_endproc
    .size mz_test_checked_call, . - mz_test_checked_call

// Functions that break the first and the last rule, and one that breaks none.
    .globl mz_test_trash_first
    .hidden mz_test_trash_first
mz_test_trash_first:
    endbr64
    inc     rbx
    ret

    .globl mz_test_trash_last
    .hidden mz_test_trash_last
mz_test_trash_last:
    endbr64
    std
    ret

    .globl mz_test_trash_none
    .hidden mz_test_trash_none
mz_test_trash_none:
    endbr64
    lea     rax, [rdi + rsi]
    add     rax, rdx
    add     rax, rcx
    add     rax, r8
    add     rax, r9
    ret
