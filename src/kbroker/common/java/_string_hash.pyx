"""Hash of Java's strings: it chooses the coordinator of a group, and the order of members in many of Kafka's decisions.

Source: ``java.lang.String.hashCode``.
"""
from libc.stdint cimport int32_t, uint32_t


def string_hash(text) -> int:
    """Return the hash of a text, a signed int of 32 bits, over its UTF-16 units. Threads: any."""
    if not isinstance(text, str):   # a typed argument would refuse subclasses
        raise TypeError(f"expected a str, got {type(text).__name__}")
    cdef uint32_t value = 0, code_point
    cdef Py_UCS4 character
    for character in <str>text:
        code_point = <uint32_t>character
        if code_point > 0xFFFF:
            value = 31 * value + 0xD7C0 + (code_point >> 10)
            code_point = 0xDC00 | code_point & 0x3FF
        value = 31 * value + code_point
    return <int32_t>value
