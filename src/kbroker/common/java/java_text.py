"""Text as Java's brokers read it: bytes that are not UTF-8 become replacement characters.

The codec decodes such bytes to surrogate escapes, so that a response can return them. Text that is stored, or shown by
other tools, has replacement characters instead: the records of the metadata log are UTF-8.
"""

from __future__ import annotations

from typing import Any


def replace_invalid_utf8(text: str) -> str:
    """Return text without surrogate escapes."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def java_length(text: str) -> int:
    """Return the length of text in Java's characters: those beyond 16 bits count twice."""
    return len(text) if text.isascii() else len(text) + sum(char > "\uffff" for char in text)


def body_as_java_reads(value: Any) -> Any:
    """Return a decoded body, or a part of it, with invalid UTF-8 replaced in its texts, not in its field names."""
    if isinstance(value, str):
        return replace_invalid_utf8(value)
    if isinstance(value, dict):
        return {name: body_as_java_reads(part) for name, part in value.items()}
    if isinstance(value, list):
        return [body_as_java_reads(part) for part in value]
    return value


def utf16_key(text: str) -> bytes:
    """Return a key that sorts texts as Java compares them: by their UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
