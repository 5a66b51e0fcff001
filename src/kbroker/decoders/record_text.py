"""Bytes of records as text for people: indented JSON, plain text, or a hexadecimal dump, all limited in size."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import NamedTuple

from kbroker.common.printable import printable_character
from kbroker.common.units import rounded_bytes

LIST_BYTES, WHOLE_BYTES = 2 << 10, 64 << 10  # limits for a value in a list, and alone
NEEDED_BEHIND = 4  # bytes after a limit, so that the last character is whole
DUMP_BYTES = 128  # shown bytes of a value in a list that is not text
_ROW = 16  # bytes of a dump's line
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_DEEPEST = 20  # levels that are indented
_PLAIN_CONTROLS = "\n\t"
_WITHOUT_PLAIN_CONTROLS = dict.fromkeys(map(ord, _PLAIN_CONTROLS))
_LONGEST_WORD = len("-Infinity")  # maximum length of a JSON word that a cut may split


class Shown(NamedTuple):
    """Bytes as a page shows them. ``kind``: null, empty, JSON, text or binary; ``note``: the part that is not shown."""

    kind: str
    text: str
    size_bytes: int
    note: str = ""


def shown(data: bytes | None, limit_bytes: int = LIST_BYTES, size_bytes: int | None = None) -> Shown:
    """Detect the kind of the bytes, and return at most ``limit_bytes`` of them as text; fewer in a dump.

    Args: ``size_bytes``: number of all bytes, where ``data`` has only the first ``limit_bytes`` + NEEDED_BEHIND.
    """
    if data is None:
        return Shown("null", "", 0)
    size = len(data) if size_bytes is None else size_bytes
    if not size:
        return Shown("empty", "", 0)
    indented = _indented(data, limit_bytes)
    if indented is not None:
        is_whole = len(indented) <= limit_bytes and size <= limit_bytes
        note = "" if is_whole else f"the beginning of {rounded_bytes(size)}"
        return Shown("JSON", safe_text(indented[:limit_bytes]), size, note)
    beginning = data[: limit_bytes + NEEDED_BEHIND]
    text = _text(beginning, is_cut=len(beginning) < size)
    if text is not None:
        return Shown("text", safe_text(text[:limit_bytes]), size, _note(min(size, limit_bytes), size))
    part = DUMP_BYTES if limit_bytes == LIST_BYTES else limit_bytes // 4
    return Shown("binary", dump(data[:part]), size, _note(min(size, part), size))


def shown_text(kind: str, text: str, size_bytes: int, limit_bytes: int) -> Shown:
    """Return decoded text, JSON indented, at most ``limit_bytes`` characters of it."""
    shorter = text[: 2 * limit_bytes]
    indented = _indented(shorter.encode("utf-8", "replace"), len(shorter.encode("utf-8", "replace")))
    whole = indented if indented is not None else shorter
    note = "" if len(whole) <= limit_bytes and len(shorter) == len(text) else "the beginning"
    return Shown(kind, safe_text(whole[:limit_bytes]), size_bytes, note)


def dump(data: bytes) -> str:
    """Return offset, bytes in hexadecimal, and bytes in ASCII: sixteen bytes a line."""
    lines = []
    for at in range(0, len(data), _ROW):
        row = data[at : at + _ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{3 * _ROW - 1}}  {text}")
    return "\n".join(lines)


def safe_text(text: str) -> str:
    """Return the text with control and bidirectional characters made visible; newlines and tabs stay."""
    if text.translate(_WITHOUT_PLAIN_CONTROLS).isprintable():
        return text
    return "".join(map(_visible, text))


@lru_cache(maxsize=4096)
def _visible(character: str) -> str:
    return character if character in _PLAIN_CONTROLS else printable_character(character)


def _text(data: bytes, is_cut: bool) -> str | None:
    """Decode UTF-8 without control characters; None for anything else."""
    text = _decoded(data, is_cut)
    if text is None:
        return None
    has_controls = any(ord(c) < 32 and c not in "\n\t\r" for c in text) or "\x7f" in text
    return None if has_controls else text.replace("\r\n", "\n")


def _decoded(data: bytes, is_cut: bool) -> str | None:
    """Decode UTF-8, without the last character if a cut may have divided it; None for anything else."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(data) - 3 or not error.start:
            return None
        return data[: error.start].decode()


def _indented(data: bytes, limit: int) -> str | None:
    """Return the beginning of a JSON object or array, one member a line, tokens unchanged; None for anything else.

    Only the shown part is examined; the rest may be malformed.
    """
    part = data[:limit]
    if part.lstrip()[:1] not in (b"{", b"["):
        return None
    is_cut = len(data) > limit
    text = _decoded(part, is_cut)
    if text is None or not _is_json(text.rstrip(), is_cut):
        return None
    out: list[str] = []
    depth, length, before = 0, 0, ""
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in "]}":
            depth -= 1
            piece = token if before in "[{" else _line(depth) + token
        else:
            piece = ": " if token == ":" else token
            if before in ("[", "{", ","):
                piece = _line(depth) + piece
            depth += token in "[{"
        out.append(piece)
        length += len(piece)
        if length > limit:
            break
        before = token
    return "".join(out)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, _DEEPEST)


def _is_json(text: str, is_cut: bool) -> bool:
    """Return whether a text is a JSON document; if ``is_cut``, also whether it may be the beginning of one."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        is_torn = error.pos > len(text) - _LONGEST_WORD or error.msg.startswith("Unterminated string")
        return is_cut and is_torn
    except (ValueError, RecursionError):
        return False
    return True


def _note(part: int, size: int) -> str:
    return "" if part >= size else f"the first {rounded_bytes(part)} of {rounded_bytes(size)}"
