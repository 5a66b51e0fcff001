# cython: freethreading_compatible=True
"""Names of entities as Python has them, and as they stand in metric tags."""
from libc.stdint cimport int32_t

from kbroker.server.quota._entities cimport PART_DEFAULT, PART_EXACT, PART_NONE, Text


class _DefaultEntity:
    """The default entity of a type, where there is none of its own."""

    def __repr__(self):
        return "DEFAULT_ENTITY"


DEFAULT_ENTITY = _DefaultEntity()


def sanitize(str name not None) -> str:
    """Return a user's name as it stands in metric tags: percent-encoded, as Kafka's ``Sanitizer`` does it."""
    from urllib.parse import quote

    return quote(name, safe="", encoding="utf-8", errors="replace").replace("~", "%7E")


cdef bytes encoded(object name, str what):
    if name is None:
        return b""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str or None, not {type(name).__name__}")
    return name.encode("utf-8", "surrogateescape")


cdef Text text_of(bytes data) noexcept:
    cdef Text text
    text.data = <const char *>data
    text.size_bytes = <int32_t>len(data)
    return text


cdef str decoded(Text text):
    return text.data[:text.size_bytes].decode("utf-8", "replace")


cdef int part_of(object name) noexcept:
    return PART_NONE if name is None else (PART_DEFAULT if name is DEFAULT_ENTITY else PART_EXACT)
