// What every asm file needs: entry and end of a function, and the notes that say that the object
// needs no executable stack and supports indirect-branch protection (IBT, BTI).

#if defined(__x86_64__)
#define MZ_LANDING_PAD endbr64
#define MZ_PROPERTY 0xc0000002
#define MZ_PROPERTY_BITS 3
#else
#define MZ_LANDING_PAD hint #34 /* bti c */
#define MZ_PROPERTY 0xc0000000
#define MZ_PROPERTY_BITS 1
#endif

.macro FUNCTION name
    .text
    .balign 32
    .globl \name
    .hidden \name
    .type \name, %function
\name:
    .cfi_startproc
    MZ_LANDING_PAD
.endm

.macro END_FUNCTION name
    .cfi_endproc
    .size \name, . - \name
.endm

    .section .note.GNU-stack, "", %progbits
    .section .note.gnu.property, "a", %note
    .balign 8
    .long 4, 16, 5
    .asciz "GNU"
    .long MZ_PROPERTY, 4, MZ_PROPERTY_BITS, 0
    .text
