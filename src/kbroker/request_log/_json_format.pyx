"""Numbers, times and hostile names as text.

Invalid UTF-8 becomes U+FFFD at the same positions as with Python's "replace", so that every form of a record has the
same names.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc

from kbroker.common.request_log import QUOTA_TYPES

cdef const char *TYPE_NAMES[5]
TYPE_NAMES[0] = b"Produce"
TYPE_NAMES[1] = b"Fetch"
TYPE_NAMES[2] = b"Request"
TYPE_NAMES[3] = b"ControllerMutation"
TYPE_NAMES[4] = b"ConnectionRate"
assert tuple((<bytes>TYPE_NAMES[i]).decode() for i in range(5)) == QUOTA_TYPES


cdef const char *quota_type_name(int quota_type) noexcept nogil:
    return TYPE_NAMES[quota_type]


cdef char *buffer_reserve(Buffer *buffer, int64_t more) noexcept nogil:
    cdef int64_t capacity = buffer.capacity
    cdef char *grown
    if buffer.size_bytes + more > capacity:
        if capacity == 0:
            capacity = 65536
        while capacity < buffer.size_bytes + more:
            capacity *= 2
        grown = <char *>realloc(buffer.data, <size_t>capacity)
        if grown == NULL:
            return NULL
        buffer.data = grown
        buffer.capacity = capacity
    return buffer.data + buffer.size_bytes


cdef void buffer_free(Buffer *buffer) noexcept nogil:
    free(buffer.data)
    buffer.data = NULL
    buffer.size_bytes = buffer.capacity = 0


cdef inline char *put_ten_millionths(char *to, int64_t n) noexcept nogil:
    """Write a fraction without its trailing zeros, of which there are fewer than seven."""
    cdef int64_t rest = n % 10000000
    to = put_int(to, n // 10000000)
    to[0] = c'.'
    to = put_three(put_three(to + 1, rest // 10000), rest // 10 % 1000)
    to[0] = <char>(c'0' + rest % 10)
    while to[0] == c'0':
        to -= 1
    return to + 1


cdef char *put_double(char *to, double value) noexcept nogil:
    """Write a number.

    Percents of a thread's time are mostly whole nanoseconds: their few digits are found without a search for the
    shortest text, and are the same.
    """
    cdef int64_t n
    if value != value or value - value != 0:
        return put_raw(to, b"null", 4)
    if -1e15 < value < 1e15 and <double><int64_t>value == value:
        to = put_int(to, <int64_t>value)
        return put_raw(to, b".0", 2)
    if 0.0001 <= value < 1e8:
        n = <int64_t>(value * 1e7 + 0.5)
        if <double>n / 1e7 == value and (n >= 10000 or n % 1000 != 0):
            return put_ten_millionths(to, n)
    return to + kb_double_text(value, to)


cdef char *put_utc(char *to, int64_t us) noexcept nogil:
    """Write a time, converting days since 1970 to a Gregorian date by eras of 400 years."""
    cdef int64_t second = us // 1000000, micro = us % 1000000
    cdef int64_t day, z, era, doe, yoe, year, doy, mp, month
    if micro < 0:
        micro += 1000000
        second -= 1
    day = second // 86400
    second -= day * 86400
    if second < 0:
        second += 86400
        day -= 1
    z = day + 719468
    era = z // 146097
    doe = z - era * 146097
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    year = yoe + era * 400
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    day = doy - (153 * mp + 2) // 5 + 1
    month = mp + 3 if mp < 10 else mp - 9
    year += month <= 2
    to = put_two(put_two(to, year // 100), year % 100)
    to[0] = c'-'
    to = put_two(to + 1, month)
    to[0] = c'-'
    to = put_two(to + 1, day)
    to[0] = c'T'
    to = put_two(to + 1, second // 3600)
    to[0] = c':'
    to = put_two(to + 1, second // 60 % 60)
    to[0] = c':'
    to = put_two(to + 1, second % 60)
    to[0] = c'.'
    to = put_three(put_three(to + 1, micro // 1000), micro % 1000)
    to[0] = c'Z'
    return to + 1


cdef inline int utf8_step(const uint8_t *at, int64_t left, bint *is_valid) noexcept nogil:
    """Return the length of the sequence that begins here, or of the bytes that are replaced together."""
    cdef uint8_t first = at[0], low = 0x80, high = 0xBF
    cdef int need, n = 1
    is_valid[0] = False
    if 0xC2 <= first <= 0xDF:
        need = 2
    elif 0xE0 <= first <= 0xEF:
        need = 3
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
    elif 0xF0 <= first <= 0xF4:
        need = 4
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    else:
        return 1
    while n < need:
        if n >= left or not low <= at[n] <= high:
            return n
        low = 0x80
        high = 0xBF
        n += 1
    is_valid[0] = True
    return n


cdef inline char *put_other(char *to, const uint8_t *at, int64_t left, int *taken) noexcept nogil:
    """Write one sequence that does not begin with ASCII."""
    cdef bint is_valid
    taken[0] = utf8_step(at, left, &is_valid)
    if is_valid:
        return put_raw(to, <const char *>at, taken[0])
    return put_raw(to, b"\xef\xbf\xbd", 3)


cdef char *put_utf8(char *to, const char *data, int64_t size_bytes) noexcept nogil:
    cdef const uint8_t *at = <const uint8_t *>data
    cdef int64_t i = 0
    cdef int taken
    while i < size_bytes:
        if at[i] < 0x80:
            to[0] = <char>at[i]
            to += 1
            i += 1
        else:
            to = put_other(to, at + i, size_bytes - i, &taken)
            i += taken
    return to


cdef inline char *put_escape(char *to, uint8_t c) noexcept nogil:
    to[0] = c'\\'
    to[1] = <char>c
    if c == c'"' or c == c'\\':
        return to + 2
    to = put_raw(to, b"\\u00", 4)
    to[0] = <char>(c'0' + (c >> 4))
    c &= 15
    to[1] = <char>(c'0' + c if c < 10 else c'a' + c - 10)
    return to + 2


cdef char *put_json(char *to, const char *data, int64_t size_bytes) noexcept nogil:
    cdef const uint8_t *at = <const uint8_t *>data
    cdef int64_t i = 0, plain
    cdef uint8_t c
    cdef int taken
    to[0] = c'"'
    to += 1
    while True:
        plain = put_plain(to, data + i, size_bytes - i)
        to += plain
        i += plain
        if i == size_bytes:
            break
        c = at[i]
        if 0x20 <= c < 0x80 and c != c'"' and c != c'\\':
            to[0] = <char>c
            to += 1
            i += 1
        elif c < 0x80:
            to = put_escape(to, c)
            i += 1
        elif c == 0xE2 and size_bytes - i >= 3 and at[i + 1] == 0x80 and at[i + 2] | 1 == 0xA9:
            to = put_raw(to, b"\\u2028" if at[i + 2] == 0xA8 else b"\\u2029", 6)    # ends a line for some readers
            i += 3
        elif c == 0xC2 and size_bytes - i >= 2 and at[i + 1] == 0x85:
            to = put_raw(to, b"\\u0085", 6)                                          # so does this
            i += 2
        else:
            to = put_other(to, at + i, size_bytes - i, &taken)
            i += taken
    to[0] = c'"'
    return to + 1
