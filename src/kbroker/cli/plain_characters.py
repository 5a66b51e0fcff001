"""Replacement of characters that standard output cannot encode, so that no command fails because of them."""

from __future__ import annotations

import codecs
import io
import sys

HANDLER = "kbroker.plain_characters"
BARS = "▁▂▃▄▅▆▇█"
_PLAIN = {"…": "~", "·": ".", "▲": "^", "▼": "v", "↑": "^", "↓": "v", **{bar: str(n) for n, bar in enumerate(BARS, 1)}}


def has_all_characters(stream: object) -> bool:
    """Return whether a stream of text can encode every character."""
    encoding = getattr(stream, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name.startswith("utf-")


def make_printable() -> None:
    """Make standard output accept every character: replace those that its encoding lacks, or print an escape.

    kbroker's own symbols are replaced by characters of the same width: the bars of charts become digits, 8 for a full
    one. Without a locale Python chooses ASCII, although terminals support UTF-8; UTF-8 is then used, as in click.
    """
    codecs.register_error(HANDLER, _plainly)
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper) or has_all_characters(stream):
            continue
        if codecs.lookup(stream.encoding).name == "ascii":
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        else:
            stream.reconfigure(errors=HANDLER)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_plain, error.object[error.start : error.end])), error.end


def _plain(character: str) -> str:
    number = ord(character)
    return _PLAIN.get(character) or (f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}")
