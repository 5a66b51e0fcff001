"""Bytes that grow, and how numbers and names are written into them. No thread of its own, no lock."""
from libc.stdint cimport int32_t, int64_t

cdef extern from *:
    """
    #ifndef KBROKER_DOUBLE_TEXT_H
    #define KBROKER_DOUBLE_TEXT_H
    #include <charconv>
    #include <cstdint>
    #include <cstdio>
    #include <cstdlib>
    #include <cstring>
    /* The shortest text that reads back as the same number, or one of 17 digits where the library has no such thing.
       Returns its length; `to` has room for 32. */
    static inline int kb_double_text(double value, char *to) noexcept {
    #if defined(__cpp_lib_to_chars) && __cpp_lib_to_chars >= 201611L
        return (int)(std::to_chars(to, to + 32, value).ptr - to);
    #else
        int n = snprintf(to, 32, "%.17g", value);
        for (int i = 0; i < n; i++) if (to[i] == ',') to[i] = '.';
        return n;
    #endif
    }
    /* In every module that writes lines: fifty calls across modules a record cost as much as all the rest. */
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
    static inline char *kb_put_int(char *to, int64_t value) noexcept {
        char digits[24];
        char *at = digits + 24;
        uint64_t left = (uint64_t)value;
        if (value < 0) {
            *to++ = '-';
            left = 0 - left;
        }
        do {
            *--at = (char)('0' + left % 10);
            left /= 10;
        } while (left != 0);
        return kb_put_raw(to, at, digits + 24 - at);
    }
    static inline char *kb_put_ms(char *to, int64_t us) noexcept {
        if (us < 0) us = 0;
        to = kb_put_int(to, us / 1000);
        us %= 1000;
        *to++ = '.';
        *to++ = (char)('0' + us / 100);
        return kb_put_two(to, us % 100);
    }
    #endif
    """
    int kb_double_text(double value, char *to) noexcept nogil
    # Each writes at `to`, which has room, and returns the place behind.
    char *put_raw "kb_put_raw"(char *to, const char *data, int64_t size_bytes) noexcept nogil
    char *put "kb_put"(char *to, const char *literal) noexcept nogil
    char *put_two "kb_put_two"(char *to, int64_t value) noexcept nogil          # 0 to 99
    char *put_int "kb_put_int"(char *to, int64_t value) noexcept nogil          # 20 bytes
    char *put_ms "kb_put_ms"(char *to, int64_t us) noexcept nogil               # microseconds as milliseconds, 24 bytes

cdef const char *quota_type_name(int quota_type) noexcept nogil     # of a note: Produce ... ConnectionRate

cdef struct Buffer:
    char *data                  # owned
    int64_t size_bytes
    int64_t capacity

cdef char *buffer_room(Buffer *buffer, int64_t more) noexcept nogil     # where to write so many; NULL: memory is out
cdef void buffer_free(Buffer *buffer) noexcept nogil

cdef char *put_double(char *to, double value) noexcept nogil            # JSON; null for what is no number, 34 bytes
cdef char *put_utc(char *to, int64_t us) noexcept nogil                 # 2026-01-02T03:04:05.123456Z, 32 bytes
cdef char *put_json(char *to, const char *data, int64_t size_bytes) noexcept nogil  # in quotes: 6 a byte, and 2
cdef char *put_utf8(char *to, const char *data, int64_t size_bytes) noexcept nogil  # U+FFFD for what is none; 3 a byte
