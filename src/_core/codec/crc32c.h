/* CRC-32C (Castagnoli, reflected polynomial 0x82F63B78).
 *
 * Three back ends: SSE4.2 and ARMv8 instructions, or eight tables. The instructions have a latency of three cycles and a
 * throughput of one, so long inputs run as three interleaved streams whose checksums are then joined: crc(A B) is
 * crc(A) moved over |B| zero bytes, xor crc(B). Moving over a fixed number of zeros is linear: four table look-ups.
 * Method: Mark Adler's crc32c.c; all code here is our own.
 *
 * kb_crc32c_setup() must run once before any other call (module import does it).
 */
#ifndef KBROKER_CRC32C_H
#define KBROKER_CRC32C_H
#include <cstddef>
#include <cstdint>
#include <cstring>

#if (defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))) || (defined(_M_X64) && defined(_MSC_VER))
#define KB_CRC32C_X86 1
#include <nmmintrin.h>
#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#define KB_CRC32C_TARGET
#else
#include <cpuid.h>
#endif
#if defined(KB_CRC32C_TARGET)
#elif defined(__clang__) && __clang_major__ >= 14 /* since clang 14 these instructions are a separate feature */
#define KB_CRC32C_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define KB_CRC32C_TARGET __attribute__((target("sse4.2")))
#endif
#define KB_CRC32C_STEP8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define KB_CRC32C_STEP1(crc, byte) (_mm_crc32_u8((crc), (byte)))
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#define KB_CRC32C_ARM 1
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__clang__)
#define KB_CRC32C_TARGET __attribute__((target("crc")))
#define KB_CRC32C_STEP8(crc, word) (__builtin_arm_crc32cd((crc), (word)))
#define KB_CRC32C_STEP1(crc, byte) (__builtin_arm_crc32cb((crc), (byte)))
#else
#define KB_CRC32C_TARGET __attribute__((target("+crc")))
#define KB_CRC32C_STEP8(crc, word) (__builtin_aarch64_crc32cx((crc), (word)))
#define KB_CRC32C_STEP1(crc, byte) (__builtin_aarch64_crc32cb((crc), (byte)))
#endif
#endif

enum { KB_CRC32C_LONG = 4096, KB_CRC32C_SHORT = 256 };      /* bytes of one stream of three; multiples of 8 */

static uint32_t kb_crc32c_table[8][256];                    /* [k][b]: byte b followed by k zero bytes */
static uint32_t kb_crc32c_over_long[4][256];                /* a checksum moved over KB_CRC32C_LONG zero bytes */
static uint32_t kb_crc32c_over_short[4][256];
static int kb_crc32c_has_hardware;

static inline uint32_t kb_crc32c_load32(const unsigned char *p) noexcept {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t kb_crc32c_by_table(uint32_t crc, const unsigned char *p, size_t n) noexcept {
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t low = crc ^ kb_crc32c_load32(p), high = kb_crc32c_load32(p + 4);
        crc = kb_crc32c_table[7][low & 255] ^ kb_crc32c_table[6][(low >> 8) & 255]
            ^ kb_crc32c_table[5][(low >> 16) & 255] ^ kb_crc32c_table[4][low >> 24]
            ^ kb_crc32c_table[3][high & 255] ^ kb_crc32c_table[2][(high >> 8) & 255]
            ^ kb_crc32c_table[1][(high >> 16) & 255] ^ kb_crc32c_table[0][high >> 24];
    }
    for (; n; n--) crc = crc >> 8 ^ kb_crc32c_table[0][(crc ^ *p++) & 255];
    return ~crc;
}

static void kb_crc32c_make_over(uint32_t over[4][256], size_t zeros) noexcept {
    uint32_t basis[32];                                     /* each single bit, moved */
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = (uint32_t)1 << bit;
        for (size_t i = 0; i < zeros; i++) crc = crc >> 8 ^ kb_crc32c_table[0][crc & 255];
        basis[bit] = crc;
    }
    for (int k = 0; k < 4; k++)
        for (int b = 0; b < 256; b++) {
            uint32_t sum = 0;
            for (int bit = 0; bit < 8; bit++)
                if (b >> bit & 1) sum ^= basis[8 * k + bit];
            over[k][b] = sum;
        }
}

static inline uint32_t kb_crc32c_move(const uint32_t over[4][256], uint32_t crc) noexcept {
    return over[0][crc & 255] ^ over[1][(crc >> 8) & 255] ^ over[2][(crc >> 16) & 255] ^ over[3][crc >> 24];
}

static int kb_crc32c_detect() noexcept {
#if defined(KB_CRC32C_X86) && defined(_MSC_VER) && !defined(__clang__)
    int info[4];
    __cpuid(info, 1);
    return info[2] >> 20 & 1;
#elif defined(KB_CRC32C_X86)
    unsigned a, b, c, d;                                    /* not __builtin_cpu_supports, which needs a run-time library */
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 20 & 1) != 0;
#elif defined(KB_CRC32C_ARM) && defined(__linux__)
    return (getauxval(AT_HWCAP) >> 7 & 1) != 0;             /* HWCAP_CRC32 */
#elif defined(KB_CRC32C_ARM) && defined(__APPLE__)
    return 1;                                               /* every Apple chip has it */
#else
    return 0;
#endif
}

static void kb_crc32c_setup() noexcept {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int i = 0; i < 8; i++) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
        kb_crc32c_table[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int b = 0; b < 256; b++) {
            uint32_t crc = kb_crc32c_table[k - 1][b];
            kb_crc32c_table[k][b] = crc >> 8 ^ kb_crc32c_table[0][crc & 255];
        }
    kb_crc32c_make_over(kb_crc32c_over_long, KB_CRC32C_LONG);
    kb_crc32c_make_over(kb_crc32c_over_short, KB_CRC32C_SHORT);
    kb_crc32c_has_hardware = kb_crc32c_detect();
}

#if defined(KB_CRC32C_X86) || defined(KB_CRC32C_ARM)
static inline uint64_t kb_crc32c_load64(const unsigned char *p) noexcept {
    uint64_t word;
    memcpy(&word, p, 8);                                    /* both architectures are little endian here */
    return word;
}

#define KB_CRC32C_THREE(LENGTH, OVER)                                                       \
    for (; n >= 3 * (size_t)(LENGTH); n -= 3 * (size_t)(LENGTH), p += 3 * (size_t)(LENGTH)) { \
        uint32_t second = 0, third = 0;                                                     \
        for (size_t i = 0; i < (size_t)(LENGTH); i += 8) {                                  \
            crc = KB_CRC32C_STEP8(crc, kb_crc32c_load64(p + i));                            \
            second = KB_CRC32C_STEP8(second, kb_crc32c_load64(p + (LENGTH) + i));           \
            third = KB_CRC32C_STEP8(third, kb_crc32c_load64(p + 2 * (LENGTH) + i));         \
        }                                                                                   \
        crc = kb_crc32c_move(OVER, crc) ^ second;                                           \
        crc = kb_crc32c_move(OVER, crc) ^ third;                                            \
    }

KB_CRC32C_TARGET static uint32_t kb_crc32c_by_hardware(uint32_t crc, const unsigned char *p, size_t n) noexcept {
    crc = ~crc;
    KB_CRC32C_THREE(KB_CRC32C_LONG, kb_crc32c_over_long)
    KB_CRC32C_THREE(KB_CRC32C_SHORT, kb_crc32c_over_short)
    for (; n >= 8; n -= 8, p += 8) crc = KB_CRC32C_STEP8(crc, kb_crc32c_load64(p));
    for (; n; n--) crc = KB_CRC32C_STEP1(crc, *p++);
    return ~crc;
}

static inline const char *kb_crc32c_back_end() noexcept {
#if defined(KB_CRC32C_X86)
    return kb_crc32c_has_hardware ? "sse4.2" : "table";
#else
    return kb_crc32c_has_hardware ? "armv8" : "table";
#endif
}
#else
#define kb_crc32c_by_hardware kb_crc32c_by_table
static inline const char *kb_crc32c_back_end() noexcept { return "table"; }
#endif

static inline uint32_t kb_crc32c(uint32_t crc, const char *data, int64_t size_bytes) noexcept {
    const unsigned char *p = (const unsigned char *)data;
    return kb_crc32c_has_hardware ? kb_crc32c_by_hardware(crc, p, (size_t)size_bytes)
                                  : kb_crc32c_by_table(crc, p, (size_t)size_bytes);
}
#endif
