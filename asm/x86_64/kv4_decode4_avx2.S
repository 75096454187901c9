// void mz_kv4_decode4_avx2(const uint16_t table[16], const uint8_t *codes, uint16_t *values,
//                          size_t blocks);
//
// Looks 4-bit codes up, 32 a block: byte j of a block's 16 holds code j in its low half and code
// j + 16 in its high half.
// System V calling convention. Needs AVX2; any alignment, any number of blocks.
// Clobbers rcx, rdx, rsi, ymm0-ymm5 and flags; uses no stack.
//
// The table is split into low and high bytes, each a register in both lanes. A shuffle looks 32
// codes up in one of them; joining the bytes of both gives tokens 0-7 and 16-23, then 8-15 and
// 24-31, of which the upper lanes are stored without moving them down first.
// Cost: about 4 cycles for 32 values.

#include "common.h"

#define TABLE   rdi
#define CODES   rsi
#define VALUES  rdx
#define BLOCKS  rcx
#define LOW     ymm2
#define HIGH    ymm3
#define NIBBLE  ymm4

    .intel_syntax noprefix

FUNCTION mz_kv4_decode4_avx2
    test    BLOCKS, BLOCKS
    jz      .Ldone
    vmovdqu xmm0, xmmword ptr [TABLE]
    vmovdqu xmm1, xmmword ptr [TABLE + 16]
    vpcmpeqw xmm4, xmm4, xmm4
    vpsrlw  xmm5, xmm4, 8           // 0x00ff
    vpand   xmm2, xmm0, xmm5
    vpand   xmm3, xmm1, xmm5
    vpackuswb xmm2, xmm2, xmm3
    vpsrlw  xmm0, xmm0, 8
    vpsrlw  xmm1, xmm1, 8
    vpackuswb xmm3, xmm0, xmm1
    vpsrlw  xmm4, xmm4, 12          // 0x000f
    vpackuswb xmm4, xmm4, xmm4
    vinserti128 LOW, LOW, xmm2, 1
    vinserti128 HIGH, HIGH, xmm3, 1
    vinserti128 NIBBLE, NIBBLE, xmm4, 1

.Lblock:
    vmovdqu xmm0, xmmword ptr [CODES]
    vpsrlw  xmm1, xmm0, 4
    vinserti128 ymm0, ymm0, xmm1, 1
    vpand   ymm0, ymm0, NIBBLE
    vpshufb ymm1, LOW, ymm0
    vpshufb ymm0, HIGH, ymm0
    vpunpcklbw ymm5, ymm1, ymm0
    vpunpckhbw ymm0, ymm1, ymm0
    vmovdqu xmmword ptr [VALUES], xmm5
    vmovdqu xmmword ptr [VALUES + 16], xmm0
    vextracti128 xmmword ptr [VALUES + 32], ymm5, 1
    vextracti128 xmmword ptr [VALUES + 48], ymm0, 1
    add     CODES, 16
    add     VALUES, 64
    dec     BLOCKS
    jnz     .Lblock
    vzeroupper
.Ldone:
    ret
END_FUNCTION mz_kv4_decode4_avx2
