"""Bytes of records as text for people: JSON indented, text as it is, everything else as a dump; all of it bounded."""

from __future__ import annotations

import json
import re

from kbroker.common.light_typing import NamedTuple
from kbroker.common.printable import printable_character
from kbroker.common.units import rounded_bytes

LIST_BYTES, WHOLE_BYTES = 2 << 10, 64 << 10  # shown of one value in a list of records, and alone
JSON_BYTES = 256 << 10  # a longer value is not parsed
DUMP_BYTES = 128  # of a value that is not text, in a list
_ROW = 16  # bytes of a dump's line
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_DEEPEST = 20  # levels that are indented
_PLAIN_CONTROLS = "\n\t"


class Shown(NamedTuple):
    """Bytes as a page shows them. ``kind``: null, empty, JSON, text or binary; ``note``: what of it is not shown."""

    kind: str
    text: str
    size_bytes: int
    note: str = ""


def shown(data: bytes | None, limit_bytes: int = LIST_BYTES) -> Shown:
    """Find out what the bytes are, and show so many of them at most."""
    if data is None:
        return Shown("null", "", 0)
    size = len(data)
    if not size:
        return Shown("empty", "", 0)
    indented = _indented(data, limit_bytes)
    if indented is not None:
        return Shown("JSON", safe_text(indented[:limit_bytes]), size, _left_out(indented, limit_bytes, size))
    text = _text(data[: limit_bytes + 4])
    if text is not None:
        return Shown("text", safe_text(text[:limit_bytes]), size, _note(min(size, limit_bytes), size))
    part = DUMP_BYTES if limit_bytes == LIST_BYTES else limit_bytes // 4
    return Shown("binary", dump(data[:part]), size, _note(min(size, part), size))


def dump(data: bytes) -> str:
    """Offset, bytes in hexadecimal and as ASCII, sixteen a line."""
    lines = []
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{3 * _ROW - 1}}  {text}")
    return "\n".join(lines)


def safe_text(text: str) -> str:
    """Text whose control characters, and those that turn its direction, are visible; lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in _PLAIN_CONTROLS else printable_character(character) for character in text)


def _text(data: bytes) -> str | None:
    """UTF-8 without control characters; a character that the cut has torn is left out. None for anything else."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3 or not error.start:
            return None
        text = data[: error.start].decode()
    has_controls = any(ord(c) < 32 and c not in "\n\t\r" for c in text) or "\x7f" in text
    return None if has_controls else text.replace("\r\n", "\n")


def _indented(data: bytes, limit: int) -> str | None:
    """The beginning of an object or array of JSON, tokens as they are, one member a line; None for anything else."""
    if len(data) > JSON_BYTES or data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        text = data.decode()
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    depth, length, before = 0, 0, ""
    for found in _TOKEN.finditer(text):
        token = found[0]
        length += len(token)
        if length > limit + 1:
            break
        if token in "]}":
            depth -= 1
            if before not in "[{":
                out.append(_line(depth))
            out.append(token)
        else:
            if before in ("[", "{", ","):
                out.append(_line(depth))
            out.append(": " if token == ":" else token)
            depth += token in "[{"
        before = token
    return "".join(out)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, _DEEPEST)


def _left_out(text: str, limit: int, size: int) -> str:
    return "" if len(text) <= limit else f"the beginning of {rounded_bytes(size)}"


def _note(part: int, size: int) -> str:
    return "" if part >= size else f"the first {rounded_bytes(part)} of {rounded_bytes(size)}"
