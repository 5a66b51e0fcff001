"""Parser of clients' regular expressions, in RE2/J's syntax: a pattern becomes the nodes of an automaton.

Every part of a pattern is a contiguous range of nodes, so that a counted repeat copies them; nothing is recursive.
Source: RE2/J 1.8, with its flags for Perl's syntax, as Kafka uses it; Thompson's construction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from kbroker.common.java.character_classes import (
    NAMED,
    PERL,
    Ranges,
    UnknownClassError,
    complement,
    folded,
    unicode_class,
)

MAX_LENGTH = 32_767  # of a pattern: a request of Kafka's clients cannot contain a longer text
MAX_REPEAT = 1000  # as in RE2
MAX_NODES = 10_000
MAX_RANGES = 20_000  # of characters, in one pattern
MAX_DEPTH = 1000  # levels of nested groups, as in RE2

SPLIT, TAKE, ASSERT, MATCH = range(4)
TEXT_START, TEXT_END, WORD_BOUNDARY, NO_WORD_BOUNDARY, LINE_START, LINE_END = (1 << bit for bit in range(6))

Predicate = Callable[[str], bool]
#: Kind; the accepted Predicate, or an assertion; the next node; the other next node of a split; -1: none.
Node = tuple[int, Predicate | int | None, int, int]
Ends = list[tuple[int, int]]  # node, and the index of the successor that is still open

_CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ASSERTIONS = {"A": TEXT_START, "z": TEXT_END, "b": WORD_BOUNDARY, "B": NO_WORD_BOUNDARY}
_OCTAL, _HEX = frozenset("01234567"), frozenset("0123456789abcdefABCDEF")
_ANY: Ranges = [("\0", "\U0010ffff")]
_NOT_NEWLINE = complement([("\n", "\n")])


class PatternError(ValueError):
    """Text that is not a pattern, or a pattern that is too expensive; the message has the reason and the position."""


class _Part(NamedTuple):
    """Contiguous nodes, from ``begins`` to the beginning of the next part. ``start``: the first to visit."""

    begins: int
    start: int
    ends: Ends


class _Flags(NamedTuple):
    fold: bool = False  # (?i)
    by_line: bool = False  # (?m)
    dot_all: bool = False  # (?s)


class _Group:
    """A group that is being parsed. ``flags``: those in force around it."""

    def __init__(self, begins: int, flags: _Flags) -> None:
        self.begins = begins
        self.flags = flags
        self.alternatives: list[_Part] = []
        self.sequence: list[_Part] = []


def parse(pattern: str) -> tuple[list[Node], int]:
    """Return the nodes of a pattern, and the first one. Raises: PatternError."""
    if len(pattern) > MAX_LENGTH:
        raise PatternError(f"the pattern is too long: {len(pattern)} characters, of at most {MAX_LENGTH}")
    return _Parser(pattern).parse()


class _Parser:
    """One pass over the pattern, with a stack of the open groups."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags = _Flags()
        self._nodes: list[Node] = []
        self._made = 0  # number of nodes, also those of a part that is repeated zero times
        self._groups = [_Group(0, self._flags)]
        self._names: set[str] = set()
        self._range_count = 0
        self._predicates: dict[tuple[str, bool, bool], Predicate] = {}  # of Unicode classes
        self._follows_repeat = False

    def parse(self) -> tuple[list[Node], int]:
        while self._at < len(self._text):
            bounds = self._bounds()
            if bounds is not None:
                self._repeat(*bounds)
                continue
            self._follows_repeat = False
            self._piece()
        if len(self._groups) > 1:
            raise self._error("expected )")
        whole = self._alternation(self._groups[0])
        self._patch(whole.ends, self._add(MATCH))
        return self._nodes, whole.start

    def _error(self, reason: str) -> PatternError:
        return PatternError(f"{reason} at position {self._at}")

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _eat(self, word: str) -> bool:
        if self._text.startswith(word, self._at):
            self._at += len(word)
            return True
        return False

    def _until(self, mark: str) -> str | None:
        """Read the text before a mark, and the mark; without a mark return None and read nothing."""
        end = self._text.find(mark, self._at)
        if end < 0:
            return None
        found = self._text[self._at : end]
        self._at = end + len(mark)
        return found

    # ------------------------------------------------------------ nodes

    def _add(self, kind: int, takes: Predicate | int | None = None, following: int = -1, other: int = -1) -> int:
        self._made += 1
        if self._made > MAX_NODES:
            raise PatternError(f"the pattern is too large: it needs more than {MAX_NODES} nodes")
        self._nodes.append((kind, takes, following, other))
        return len(self._nodes) - 1

    def _patch(self, ends: Ends, target: int) -> None:
        for node, which in ends:
            kind, takes, following, other = self._nodes[node]
            self._nodes[node] = (kind, takes, target, other) if which == 0 else (kind, takes, following, target)

    def _push(self, kind: int, takes: Predicate | int | None) -> None:
        """Append a part of one node to the sequence."""
        node = self._add(kind, takes)
        self._groups[-1].sequence.append(_Part(node, node, [(node, 0)]))

    def _empty(self) -> _Part:
        node = self._add(SPLIT)
        return _Part(node, node, [(node, 0)])

    def _concatenation(self, group: _Group) -> _Part:
        parts = group.sequence or [self._empty()]
        group.sequence = []
        for part, following in pairwise(parts):
            self._patch(part.ends, following.start)
        return _Part(parts[0].begins, parts[0].start, parts[-1].ends)

    def _alternation(self, group: _Group) -> _Part:
        """Return the part of a group that ends."""
        parts = [*group.alternatives, self._concatenation(group)]
        start, ends = parts[-1].start, list(parts[-1].ends)
        for part in reversed(parts[:-1]):
            start = self._add(SPLIT, None, part.start, start)
            ends += part.ends
        return _Part(group.begins, start, ends)

    # ------------------------------------------------------------ repeats

    def _bounds(self) -> tuple[int, int] | None:
        """Read the bounds of a repeat; -1: unbounded; None if there is no repeat here. Raises: PatternError."""
        for sign, bounds in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self._eat(sign):
                return bounds
        if self._next() != "{":
            return None
        close = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(close, self._at + 1)].partition(",")
        if close < 0 or not _is_count(low) or not (not high or _is_count(high)):
            return None  # as in RE2: a brace without a count is a character
        if len(low) > 4 or len(high) > 4:
            raise self._error(f"a repeat of more than {MAX_REPEAT}")
        least, most = int(low), int(high) if high else -1 if comma else int(low)
        if max(least, most) > MAX_REPEAT or (most >= 0 and most < least):
            raise self._error(f"an impossible repeat, or one of more than {MAX_REPEAT}")
        self._at = close + 1
        return least, most

    def _repeat(self, low: int, high: int) -> None:
        """Repeat the latest part of the sequence. Raises: PatternError if there is none, or it is a repeat."""
        self._eat("?")  # lazy repeats match the same texts
        if self._follows_repeat:
            raise self._error("a repeat of a repeat")
        self._follows_repeat = True
        sequence = self._groups[-1].sequence
        if not sequence:
            raise self._error("nothing to repeat")
        part = sequence.pop()
        if high == 0:
            del self._nodes[part.begins :]
            sequence.append(self._empty())
            return
        copied = self._nodes[part.begins :], part
        first = part
        if low == 0 and high < 0:
            part = self._star(part)
        elif low == 0:
            part = self._optional(part)
        elif low == 1 and high < 0:
            part = self._plus(part)
        skipped: Ends = [part.ends.pop()] if low == 0 and high > 0 else []  # the path that skips the optional part
        for number in range(2, low + 1):
            one = self._copy(*copied)
            if number == low and high < 0:
                one = self._plus(one)
            self._patch(part.ends, one.start)
            part = _Part(first.begins, part.start, one.ends)
        for _ in range(max(low, 1), high):
            one = self._optional(self._copy(*copied))
            skipped.append(one.ends.pop())
            self._patch(part.ends, one.start)
            part = _Part(first.begins, part.start, one.ends)
        sequence.append(_Part(first.begins, part.start, part.ends + skipped))

    def _copy(self, nodes: list[Node], part: _Part) -> _Part:
        """Return a copy of a part; ``nodes``: its nodes, before a successor was set."""
        shift = len(self._nodes) - part.begins
        for kind, takes, following, other in nodes:
            self._add(kind, takes, following + shift if following >= 0 else -1, other + shift if other >= 0 else -1)
        return _Part(part.begins + shift, part.start + shift, [(node + shift, which) for node, which in part.ends])

    def _star(self, part: _Part) -> _Part:
        node = self._add(SPLIT, None, part.start)
        self._patch(part.ends, node)
        return _Part(part.begins, node, [(node, 1)])

    def _plus(self, part: _Part) -> _Part:
        return self._star(part)._replace(start=part.start)

    def _optional(self, part: _Part) -> _Part:
        """Return the part with a path around it, as the last of its ends."""
        node = self._add(SPLIT, None, part.start)
        return _Part(part.begins, node, [*part.ends, (node, 1)])

    # ------------------------------------------------------------ pieces

    def _piece(self) -> None:
        """Read one element that is not a repeat."""
        char = self._next()
        if char == "(":
            self._at += 1
            self._open()
        elif char == ")":
            self._close()
        elif char == "|":
            self._at += 1
            group = self._groups[-1]
            group.alternatives.append(self._concatenation(group))
        elif char == "[":
            self._at += 1
            self._push(TAKE, _predicate(self._class()))
        elif char == "\\":
            self._at += 1
            self._escape()
        else:
            self._at += 1
            if char == ".":
                self._push(TAKE, _predicate(_ANY if self._flags.dot_all else _NOT_NEWLINE))
            elif char == "^":
                self._push(ASSERT, LINE_START if self._flags.by_line else TEXT_START)
            elif char == "$":
                self._push(ASSERT, LINE_END if self._flags.by_line else TEXT_END)
            else:
                self._literal(char)

    def _literal(self, char: str) -> None:
        ranges = [(char, char)]
        self._push(TAKE, _predicate(folded(ranges) if self._flags.fold else ranges))

    def _open(self) -> None:
        flags = self._flags
        if self._eat("?"):
            if self._eat("P<") or self._eat("<"):
                self._name()
            elif not self._read_flags():
                return  # (?i) applies to the rest of the enclosing group
        if len(self._groups) > MAX_DEPTH:
            raise self._error("groups are nested too deeply")
        self._groups.append(_Group(len(self._nodes), flags))

    def _close(self) -> None:
        if len(self._groups) == 1:
            raise self._error("unexpected )")
        self._at += 1
        group = self._groups.pop()
        part = self._alternation(group)
        self._flags = group.flags
        self._groups[-1].sequence.append(part)

    def _name(self) -> None:
        name = self._until(">")
        if not name or not all(one == "_" or (one.isascii() and one.isalnum()) for one in name):
            raise self._error("an invalid name of a group")
        if name in self._names:
            raise self._error(f"the name {name} is that of another group")
        self._names.add(name)

    def _read_flags(self) -> bool:
        """Read flags of a group; False if no group follows them. They take effect only if all could be read.

        Raises: PatternError for an unknown flag.
        """
        flags, value, has_flag = self._flags._asdict(), True, True
        names = {"i": "fold", "m": "by_line", "s": "dot_all"}
        while True:
            char = self._next()
            self._at += 1
            if char in names:
                flags[names[char]] = value
                has_flag = True
            elif char == "U":  # greedy or lazy: the same texts match
                has_flag = True
            elif char == "-" and value:
                value = has_flag = False
            elif char in (":", ")") and char and has_flag:
                self._flags = _Flags(**flags)
                return char == ":"
            else:
                raise self._error("an unknown flag or kind of group")

    def _escape(self) -> None:
        """Parse an escape outside a class."""
        char = self._next()
        if char == "Q":
            self._at += 1
            quoted = self._until("\\E")
            if quoted is None:
                quoted, self._at = self._text[self._at :], len(self._text)
            for one in quoted:
                self._literal(one)
        elif char in _ASSERTIONS and char:
            self._at += 1
            self._push(ASSERT, _ASSERTIONS[char])
        elif char in ("p", "P"):
            self._push(TAKE, self._unicode_predicate())
        elif char and char.lower() in PERL:
            self._push(TAKE, _predicate(self._perl()))
        else:
            self._literal(self._escaped())

    def _perl(self) -> Ranges:
        char = self._next()
        self._at += 1
        ranges = folded(PERL[char.lower()]) if self._flags.fold else PERL[char.lower()]
        return ranges if char.islower() else complement(ranges)

    def _unicode(self) -> tuple[str, bool]:
        """Read the name of a Unicode class, and whether it is negated; the backslash has been read."""
        is_negated = self._next() == "P"
        self._at += 1
        name: str | None = self._next()
        self._at += 1
        if name == "{":
            name = self._until("}")
        if not name:
            raise self._error("a class without its name")
        if name.startswith("^"):
            return name[1:], not is_negated
        return name, is_negated

    def _unicode_ranges(self, name: str, is_negated: bool) -> Ranges:
        try:
            ranges = unicode_class(name, self._flags.fold)
        except UnknownClassError as error:
            raise self._error(str(error)) from None
        return complement(ranges) if is_negated else ranges

    def _unicode_predicate(self) -> Predicate:
        name, is_negated = self._unicode()
        key = name, is_negated, self._flags.fold
        found = self._predicates.get(key)
        if found is None:  # the ranges of a class can take 10 ms, and a pattern name it 10,000 times
            ranges = self._unicode_ranges(name, is_negated)
            self._count_ranges(len(ranges))
            found = self._predicates[key] = _predicate(ranges)
        return found

    def _escaped(self) -> str:
        """Read an escape after its backslash; return its character. Raises: PatternError."""
        char = self._next()
        self._at += 1
        if char == "x":
            return self._hex()
        if char in _CONTROL and char:
            return _CONTROL[char]
        if char in _OCTAL and (char == "0" or self._next() in _OCTAL):
            digits = char
            while len(digits) < 3 and self._next() in _OCTAL:
                digits += self._next()
                self._at += 1
            return chr(int(digits, 8))
        if not char or (char.isascii() and char.isalnum()):
            raise self._error("an unknown escape")
        return char

    def _hex(self) -> str:
        if self._eat("{"):
            digits = self._until("}") or ""
        else:
            digits = self._text[self._at : self._at + 2]
            self._at += 2
            if len(digits) < 2:
                digits = ""
        if not digits or any(one not in _HEX for one in digits):
            raise self._error("an invalid number of a character")
        number = int(digits.lstrip("0")[:7] or "0", 16)  # the first seven digits suffice, even of a hundred
        if number > 0x10FFFF:
            raise self._error("an invalid number of a character")
        return chr(number)

    # ------------------------------------------------------------ classes

    def _class(self) -> Ranges:
        is_negated = self._eat("^")
        ranges: Ranges = []
        is_first = True
        while is_first or self._next() != "]":
            is_first = False
            if not self._next():
                raise self._error("expected ]")
            found = self._class_piece()
            self._count_ranges(len(found))
            ranges += found
        self._at += 1
        return complement(ranges) if is_negated else ranges

    def _class_piece(self) -> Ranges:
        fold = self._flags.fold
        if self._text.startswith("[:", self._at):
            begins = self._at
            self._at += 2
            name = self._until(":]")
            if name is not None:
                if name.removeprefix("^") not in NAMED:
                    raise self._error("an unknown class")
                named = NAMED[name.removeprefix("^")]
                named = folded(named) if fold else named
                return complement(named) if name.startswith("^") else named
            self._at = begins
        if self._next() == "\\":
            char = self._text[self._at + 1 : self._at + 2]
            if char and (char in "pP" or char.lower() in PERL):
                self._at += 1
                return self._unicode_ranges(*self._unicode()) if char in "pP" else self._perl()
        low = high = self._class_char()
        if self._next() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
            self._at += 1
            high = self._class_char()
            if low > high:
                raise self._error("an impossible range")
        return folded([(low, high)]) if fold else [(low, high)]

    def _class_char(self) -> str:
        if self._eat("\\"):
            return self._escaped()
        char = self._next()
        if not char:
            raise self._error("expected ]")
        self._at += 1
        return char

    def _count_ranges(self, count: int) -> None:
        self._range_count += count
        if self._range_count > MAX_RANGES:
            raise PatternError(f"the pattern is too large: its classes need more than {MAX_RANGES} ranges")


def _is_count(text: str) -> bool:
    """Return whether the text is a number without leading zeros."""
    return text.isascii() and text.isdigit() and (text == "0" or text[0] != "0")


def _predicate(ranges: Ranges) -> Predicate:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return ranges[0][0].__eq__
    firsts: list[str] = []
    lasts: list[str] = []
    for low, high in sorted(ranges):
        if lasts and low <= lasts[-1]:
            lasts[-1] = max(lasts[-1], high)
        else:
            firsts.append(low)
            lasts.append(high)

    def is_within(char: str) -> bool:
        at = bisect_right(firsts, char) - 1
        return at >= 0 and char <= lasts[at]

    return is_within
