"""Text of clients for a terminal: no name can control the screen or reverse the direction of other text."""

from __future__ import annotations

import re

# Characters that are kept have a visible place on the line: letters, marks, numbers, punctuation, symbols, spaces.
_KEPT_CATEGORIES = ("L", "M", "N", "P", "S", "Zs")
_ASCII = re.compile(r"[ -~]*\Z")


def printable(text: str) -> str:
    """Return the text in one line: control and direction-changing characters as \\u001b, \\u202e."""
    if _ASCII.match(text):
        return text
    return "".join(map(printable_character, text))


def printable_character(character: str) -> str:
    """Return the character itself if it has a place on the line, else its escape as Python and JSON write it."""
    if " " <= character <= "~":
        return character
    from unicodedata import category

    if category(character).startswith(_KEPT_CATEGORIES):
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def columns_of(text: str) -> int:
    """Return the width of a printable text in terminal columns: two for a wide character, none for an accent."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(character) in ("Mn", "Me") else 2 if east_asian_width(character) in "WF" else 1
        for character in text
    )


def beginning(text: str, columns: int) -> str:
    """Return the beginning of a printable text that fits into `columns`."""
    for index, character in enumerate(text):
        columns -= columns_of(character)
        if columns < 0:
            return text[:index]
    return text


def printable_json(document: str) -> str:
    """Return an equivalent JSON document whose strings contain no control or direction-changing characters."""
    if document.isascii() and "\x7f" not in document:
        return document  # JSON itself escapes the other control characters
    return "".join(character if character in "\n\r\t" else _json_character(character) for character in document)


def _json_character(character: str) -> str:
    if printable_character(character) == character:
        return character
    number = ord(character)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
