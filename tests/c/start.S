// Brings one core of an aarch64 machine to C: floating point and vectors on, memory cacheable (the
// library's loops read unaligned, which device memory does not allow), stack painted, bss zeroed.
// For qemu's "virt": devices in the first GiB of addresses, RAM in the second.

    .section .text.start, "ax"
    .global _start
_start:
    mov     x0, #(3 << 20)          // CPACR_EL1.FPEN: no traps
    msr     cpacr_el1, x0
    isb

    adrp    x0, tables
    add     x0, x0, :lo12:tables
    ldr     x1, =0x00000000000401   // block, accessed, attributes 0: device
    str     x1, [x0]
    ldr     x1, =0x40000705         // block, accessed, inner shareable, attributes 1: normal
    str     x1, [x0, #8]
    dsb     sy
    msr     ttbr0_el1, x0
    ldr     x1, =0xFF00             // attributes 0: device-nGnRnE, 1: write-back
    msr     mair_el1, x1
    ldr     x1, =0x803519           // 39 bits of addresses, 4 KiB granule, write-back, no TTBR1
    msr     tcr_el1, x1
    isb
    mrs     x1, sctlr_el1
    mov     x2, #0x1005             // MMU, data cache, instruction cache
    orr     x1, x1, x2
    bic     x1, x1, #2              // no alignment checks
    msr     sctlr_el1, x1
    isb

    ldr     x0, =__bss_start
    ldr     x1, =__bss_end
1:  cmp     x0, x1
    b.hs    2f
    str     xzr, [x0], #8
    b       1b
2:  ldr     x0, =__mz_stack_bottom
    ldr     x1, =__mz_stack_top
    mov     sp, x1
    ldr     x2, =0x5AA55AA55AA55AA5
3:  cmp     x0, x1
    b.hs    4f
    str     x2, [x0], #8
    b       3b
4:  bl      main
    b       leave

// Ends the machine with a status: semihosting's SYS_EXIT_EXTENDED.
    .global leave
leave:
    sub     sp, sp, #16
    ldr     x1, =0x20026            // ADP_Stopped_ApplicationExit
    stp     x1, x0, [sp]
    mov     x1, sp
    mov     w0, #0x20
    hlt     #0xF000
5:  b       5b

    .section .data.tables, "aw"
    .balign 4096
tables:
    .zero   4096

    .section .note.GNU-stack, "", %progbits
