"""Records as JSON objects: lines of a file, values of a topic, or both."""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.containers.buffer cimport Buffer
from kbroker.request_log._drain cimport RecordFormat, RecordSink, TopicBatches
from kbroker.request_log._log_core cimport KNOWN_APIS
from kbroker.request_log._record_ring cimport Record

cdef extern from *:
    """
    #ifndef KBROKER_DOUBLE_TEXT_H
    #define KBROKER_DOUBLE_TEXT_H
    #include <charconv>
    #include <cstdint>
    #include <cstdio>
    #include <cstdlib>
    #include <cstring>
    /* Writes the shortest text that reads back as the same number, or 17 digits where the library lacks std::to_chars.
       Returns the length; `to` has a capacity of 32 bytes. */
    static inline int kb_double_text(double value, char *to) noexcept {
    #if defined(__cpp_lib_to_chars) && __cpp_lib_to_chars >= 201611L
        return (int)(std::to_chars(to, to + 32, value).ptr - to);
    #else
        int n = snprintf(to, 32, "%.17g", value);
        for (int i = 0; i < n; i++) if (to[i] == ',') to[i] = '.';
        return n;
    #endif
    }
    /* Inline in each module that writes lines: fifty calls of another module for each record would double its cost. */
    static inline char *kb_put_raw(char *to, const char *data, int64_t size) noexcept {
        if (size > 0) memcpy(to, data, (size_t)size);
        return to + size;
    }
    static inline char *kb_put(char *to, const char *literal) noexcept {
        return kb_put_raw(to, literal, (int64_t)strlen(literal));
    }
    static inline char *kb_put_two(char *to, int64_t value) noexcept {
        to[0] = (char)('0' + value / 10);
        to[1] = (char)('0' + value % 10);
        return to + 2;
    }
    /* 0 to 999 as three digits; in the fourth byte the number of leading zeros. A record has two dozen numbers:
       a division for each digit would be a large part of the cost of a line. */
    struct kb_triples {
        char at[4 * 1000];
        constexpr kb_triples() : at() {
            for (int i = 0; i < 1000; i++) {
                at[4 * i] = (char)('0' + i / 100);
                at[4 * i + 1] = (char)('0' + i / 10 % 10);
                at[4 * i + 2] = (char)('0' + i % 10);
                at[4 * i + 3] = (char)(i < 10 ? 2 : i < 100 ? 1 : 0);
            }
        }
    };
    static constexpr kb_triples KB_TRIPLES;
    static inline char *kb_put_three(char *to, uint64_t value) noexcept {
        memcpy(to, KB_TRIPLES.at + 4 * value, 4);       /* one byte more than it says */
        return to + 3;
    }
    static inline char *kb_put_below_1000(char *to, uint64_t value) noexcept {
        const char *at = KB_TRIPLES.at + 4 * value;
        int zeros = at[3];
        memcpy(to, at + zeros, 4);
        return to + 3 - zeros;
    }
    static inline char *kb_put_unsigned(char *to, uint64_t value) noexcept {
        if (value < 1000) return kb_put_below_1000(to, value);
        if (value < 1000000) return kb_put_three(kb_put_below_1000(to, value / 1000), value % 1000);
        to = kb_put_unsigned(to, value / 1000000);
        value %= 1000000;
        return kb_put_three(kb_put_three(to, value / 1000), value % 1000);
    }
    static inline char *kb_put_int(char *to, int64_t value) noexcept {
        if (value >= 0) return kb_put_unsigned(to, (uint64_t)value);
        *to = '-';
        return kb_put_unsigned(to + 1, 0 - (uint64_t)value);
    }
    static inline char *kb_put_ms(char *to, int64_t us) noexcept {
        uint64_t left = us < 0 ? 0 : (uint64_t)us;
        to = kb_put_unsigned(to, left / 1000);
        *to = '.';
        return kb_put_three(to + 1, left % 1000);
    }
    /* Copies characters that JSON does not escape, eight bytes at a time, and returns the number of bytes copied. */
    static inline int64_t kb_put_plain(char *to, const char *data, int64_t size) noexcept {
        const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones * 0x80;
        int64_t done = 0;
        for (; size - done >= 8; done += 8) {
            uint64_t x, quote, backslash;
            memcpy(&x, data + done, 8);
            quote = x ^ ones * 0x22;
            backslash = x ^ ones * 0x5C;
            if ((x | (x - ones * 0x20) | (quote - ones) | (backslash - ones)) & tops) break;
            memcpy(to + done, &x, 8);
        }
        return done;
    }
    #endif
    """
    int kb_double_text(double value, char *to) noexcept nogil
    # Each writes at `to`, which has enough capacity, and returns the position after the text.
    char *put_raw "kb_put_raw"(char *to, const char *data, int64_t size_bytes) noexcept nogil
    char *put "kb_put"(char *to, const char *literal) noexcept nogil
    char *put_two "kb_put_two"(char *to, int64_t value) noexcept nogil          # 0 to 99
    char *put_three "kb_put_three"(char *to, uint64_t value) noexcept nogil     # 0 to 999; needs 4 bytes
    char *put_int "kb_put_int"(char *to, int64_t value) noexcept nogil          # needs 24 bytes
    char *put_ms "kb_put_ms"(char *to, int64_t us) noexcept nogil               # microseconds as milliseconds, 28 bytes
    int64_t put_plain "kb_put_plain"(char *to, const char *data, int64_t size_bytes) noexcept nogil     # see above

# Return the maximum size of a record's object, with the end of its line.
cdef int64_t most_bytes(const Record *record) noexcept nogil
# Write UTF-8, with U+FFFD for invalid bytes: at most 3 bytes per byte.
cdef char *put_utf8(char *to, const char *data, int64_t size_bytes) noexcept nogil

cdef struct Words:              # fixed text at the beginning of an object
    int64_t size_bytes
    char data[60]

cdef struct JsonCore:
    RecordSink sink             # first
    bint wants_lines
    int64_t second              # since 1970: second of ``begun``
    Words begun                 # an object up to the fraction of its second
    Words numbered              # the text between its time and its number
    const char *api_names[KNOWN_APIS]   # in JSON; NULL: unknown
    int64_t api_name_bytes[KNOWN_APIS]
    Buffer lines
    Buffer object               # the current object
    Buffer key
    int64_t line_count
    TopicBatches batches

cdef class JsonLines(RecordFormat):
    cdef JsonCore *core         # owned
