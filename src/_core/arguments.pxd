"""Checks of arguments from Python, header only: a wrong type is a TypeError, a number out of range a ValueError."""
from libc.stdint cimport int64_t

cdef inline int64_t integer(object value, str name, int64_t least, int64_t most) except? -1:
    """Return `value` as a C integer; a number out of range is a ValueError, unlike in Python's conversion."""
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    if value < least or value > most:
        raise ValueError(f"{name} must be between {least} and {most}, got {value}")
    return value

cdef inline int64_t ms_to_ns(int64_t ms) noexcept nogil:
    """Return nanoseconds, at most 126 years, so that adding a clock's time cannot overflow."""
    return ms * 1000000 if ms < 4000000000000LL else 4000000000000000000LL
