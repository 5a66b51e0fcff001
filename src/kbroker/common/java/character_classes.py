"""Character classes of clients' regular expressions: Perl's, POSIX's and Unicode's; letters of both cases.

Source: RE2/J 1.8 (``CharGroup``, ``UnicodeTables``, ``Unicode.simpleFold``), whose Unicode is version 6.0.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

Ranges = list[tuple[str, str]]  # first and last character of each

_LAST = "\U0010ffff"
_DIGITS: Ranges = [("0", "9")]
_WORDS: Ranges = [("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")]

#: Letter after a backslash; an upper-case letter is the complement.
PERL: dict[str, Ranges] = {"d": _DIGITS, "w": _WORDS, "s": [("\t", "\n"), ("\f", "\r"), (" ", " ")]}
#: Name between ``[:`` and ``:]``, within a class.
NAMED: dict[str, Ranges] = {
    "alnum": [("0", "9"), ("A", "Z"), ("a", "z")],
    "alpha": [("A", "Z"), ("a", "z")],
    "ascii": [("\0", "\x7f")],
    "blank": [("\t", "\t"), (" ", " ")],
    "cntrl": [("\0", "\x1f"), ("\x7f", "\x7f")],
    "digit": _DIGITS,
    "graph": [("!", "~")],
    "lower": [("a", "z")],
    "print": [(" ", "~")],
    "punct": [("!", "/"), (":", "@"), ("[", "`"), ("{", "~")],
    "space": [("\t", "\r"), (" ", " ")],
    "upper": [("A", "Z")],
    "word": _WORDS,
    "xdigit": [("0", "9"), ("A", "F"), ("a", "f")],
}


class UnknownClassError(ValueError):
    """An unknown Unicode class."""


def unicode_class(name: str, fold: bool) -> Ranges:
    """Return the characters of a general category or script; ``fold``: in all cases. Raises: UnknownClassError."""
    from kbroker.common.java import unicode_tables

    if name == "Any":
        return [("\0", _LAST)]
    found = unicode_tables.ranges_of(name)
    if found is None:
        raise UnknownClassError(f"no Unicode class {name[:40]!r}")
    return folded(found) if fold else found


def folded(ranges: Ranges) -> Ranges:
    """Return the ranges with the other cases of their letters (some letters have more than two)."""
    if all(high < "\x7f" for _, high in ranges):
        return [*ranges, *(one for low, high in ranges for one in _other_case(low, high))]
    from kbroker.common.java import unicode_tables

    others = unicode_tables.other_cases()
    letters = list(others)
    found = list(ranges)
    for low, high in ranges:
        if low > letters[0] or high < letters[-1]:  # otherwise all letters are in the range
            for letter in letters[bisect_left(letters, low) : bisect_right(letters, high)]:
                found += [(other, other) for other in others[letter]]
    return found


def _other_case(low: str, high: str) -> Ranges:
    """Return the other case of the letters in a range of ASCII; K and S have a third form each."""
    found: Ranges = []
    for first, last, shift in (("a", "z", -32), ("A", "Z", 32)):
        a, b = max(low, first), min(high, last)
        if a <= b:
            found.append((chr(ord(a) + shift), chr(ord(b) + shift)))
            found += [(third, third) for letter, third in (("k", "\u212a"), ("s", "\u017f")) if a <= letter <= b]
            found += [(third, third) for letter, third in (("K", "\u212a"), ("S", "\u017f")) if a <= letter <= b]
    return found


def complement(ranges: Ranges) -> Ranges:
    """Return all other characters."""
    found: Ranges = []
    start = 0
    for low, high in sorted(ranges):
        if ord(low) > start:
            found.append((chr(start), chr(ord(low) - 1)))
        start = max(start, ord(high) + 1)
    if start <= ord(_LAST):
        found.append((chr(start), _LAST))
    return found
