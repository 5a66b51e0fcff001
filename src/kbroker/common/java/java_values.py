"""Numbers and lists as Java reads and prints them: accepted values of Kafka's configs, and their texts.

Source: ``ConfigDef.parseType``, ``Double.parseDouble``, ``Double.toString`` (of Java 19 and later), ``String.trim``,
``String.split``.
"""

from __future__ import annotations

import math
import re

_BLANKS = "".join(map(chr, range(0x21)))  # characters that String.trim removes, without Unicode's other blanks
_COMMA = re.compile(r"[ \t\n\x0b\f\r]*,[ \t\n\x0b\f\r]*")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fFdD]?")
_HEX = re.compile(r"([-+]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][-+]?[0-9]+)[fFdD]?")
_NAMED = re.compile(r"([-+]?)(NaN|Infinity)")
_MOST_DIGITS = 19  # of a long, without leading zeros


def trim(text: str) -> str:
    """Return the text without Java's blanks at its ends."""
    return text.strip(_BLANKS)


def parse_long(text: str) -> int | None:
    """Return a whole number in the form that ``Long.parseLong`` reads, or None for other text and above 19 digits.

    Digits of any script are accepted; blanks, underscores and letters are not. The caller checks the range.
    """
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits or not all(letter.isdecimal() and letter <= "\uffff" for letter in digits):
        return None
    significant = digits.lstrip("0")
    if len(significant) > _MOST_DIGITS:
        return None
    value = int(significant or "0")
    return -value if text[0] == "-" else value


def parse_double(text: str) -> float | None:
    """Return the number that ``Double.parseDouble`` reads, such as ``5e-1f``, ``0x1p-1`` or ``NaN``, or None."""
    text = trim(text)
    if (named := _NAMED.fullmatch(text)) is not None:
        value = math.nan if named[2] == "NaN" else math.inf
        return -value if named[1] == "-" else value
    if _DECIMAL.fullmatch(text) is not None:
        return float(text.rstrip("fFdD"))
    if (found := _HEX.fullmatch(text)) is not None:
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return -math.inf if text[0] == "-" else math.inf
    return None


def double_text(value: float) -> str:
    """Return the text of a double as ``Double.toString`` prints it: ``1.0E-5``, ``0.001``, ``1.0E7``."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return f"{sign}0.0"
    digits, exponent = _shortest(abs(value))
    if 1e-3 <= abs(value) < 1e7:
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole = digits[: exponent + 1].ljust(exponent + 1, "0")
        return f"{sign}{whole}.{digits[exponent + 1 :] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _shortest(value: float) -> tuple[str, int]:
    """Return the fewest digits that identify the number, two if one is not the nearest, and the exponent."""
    mantissa, _, exponent = format(value, f".{_precision(value)}e").partition("e")
    return mantissa.replace(".", "").rstrip("0"), int(exponent)


def _precision(value: float) -> int:
    digits = repr(value).partition("e")[0].replace(".", "").strip("0")
    return max(1, len(digits) - 1)


def java_split(text: str, separator: str) -> list[str]:
    """Return the parts as Java's ``String.split``: without empty parts at the end, but one part of an empty text."""
    if not text:
        return [text]
    parts = text.split(separator)
    while parts and not parts[-1]:
        parts.pop()
    return parts


def split_list(text: str) -> tuple[str, ...]:
    """Return the words of a list; a word between two commas may be empty."""
    text = trim(text)
    return tuple(_COMMA.split(text)) if text else ()
