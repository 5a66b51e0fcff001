"""Characters that a terminal or file has none for: something readable in their place, and never a failed command."""

from __future__ import annotations

import codecs
import io
import sys

HANDLER = "kbroker.plain_characters"
BARS = "▁▂▃▄▅▆▇█"
_PLAIN = {"…": "~", "·": ".", "▲": "^", "▼": "v", "↑": "^", "↓": "v", **{bar: str(n) for n, bar in enumerate(BARS, 1)}}


def has_all_characters(stream: object) -> bool:
    """Return whether a stream of text takes every character."""
    encoding = getattr(stream, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name.startswith("utf-")


def make_printable() -> None:
    """Let standard output take every character: what its encoding lacks is printed plainly, or as an escape.

    Ours become a character as wide as they are: the bars of charts become digits, 8 for a full one. ASCII is what
    Python takes where no locale is set, not what a terminal has: it gets UTF-8, as click prints there.
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
