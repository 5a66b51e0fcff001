"""Text of others on a terminal: whatever is in a name, it does nothing to the screen and turns no other text around."""

from __future__ import annotations

import re

# What is kept is what has a place on the line: letters, marks, numbers, punctuation, symbols, spaces.
_KEPT_CATEGORIES = ("L", "M", "N", "P", "S", "Zs")
_ASCII = re.compile(r"[ -~]*\Z")


def printable(text: str) -> str:
    """The text in one line: control characters and those that turn the direction of text as \\u001b, \\u202e."""
    if _ASCII.match(text):
        return text
    return "".join(map(printable_character, text))


def printable_character(character: str) -> str:
    """The character itself if it has a place on the line, else its escape as Python and JSON write it."""
    if " " <= character <= "~":
        return character
    from unicodedata import category

    if category(character).startswith(_KEPT_CATEGORIES):
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def printable_json(document: str) -> str:
    """A JSON document that means the same, its strings without such characters."""
    if document.isascii() and "\x7f" not in document:
        return document  # JSON escapes the other control characters itself
    return "".join(character if character in "\n\r\t" else _json_character(character) for character in document)


def _json_character(character: str) -> str:
    if printable_character(character) == character:
        return character
    number = ord(character)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
