"""Regular expressions of clients, matched in time that grows only linearly with the text, whatever the pattern.

The syntax is that of RE2, which Kafka uses for such patterns, without Unicode classes (``\\p``); a pattern matches
a whole text. The pattern becomes a nondeterministic automaton, of which the deterministic states are made when they are
first met, and forgotten when they are too many. A pattern with word boundaries has none of them: what is reached
depends on the next character too.
Source: KIP-1152; RE2/J; Thompson's construction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

MAX_LENGTH = 32_767  # of a pattern: no longer text fits into a request of Kafka's clients
MAX_REPEAT = 1000  # as RE2
MAX_NODES = 2000
MAX_RANGES = 20_000  # of characters, read for one pattern: a repeat reads those of its operand again
MAX_DEPTH = 100
MAX_STATES = 500  # deterministic ones that are kept
MAX_STEPS = 4_000_000  # nodes visited for one pattern, over all texts

Predicate = Callable[[str], bool]
Ranges = list[tuple[str, str]]

_DIGITS: Ranges = [("0", "9")]
_WORDS: Ranges = [("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")]
_SPACES: Ranges = [("\t", "\n"), ("\f", "\r"), (" ", " ")]
_PERL = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_POSIX: dict[str, Ranges] = {
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
_CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LAST = "\U0010ffff"

_SPLIT, _TAKE, _START, _END, _MATCH, _BOUNDARY, _NO_BOUNDARY = range(7)


class PatternError(ValueError):
    """The text is no pattern, or one that costs too much; the message says why and where."""


class LinearPattern:
    """A compiled pattern. Threads: one at a time."""

    def __init__(self, pattern: str) -> None:
        """Raises: PatternError."""
        self._nodes: list[tuple[int, object, int, int]] = []  # kind, what it takes, next, other next
        self._steps = 0
        if len(pattern) > MAX_LENGTH:
            raise PatternError(f"the pattern is too long: {len(pattern)} characters, of at most {MAX_LENGTH}")
        start, ends = _Parser(pattern, self._add, self._patch).parse()
        self._patch(ends, self._add(_MATCH))
        self._start = start
        self._has_boundaries = any(node[0] in (_BOUNDARY, _NO_BOUNDARY) for node in self._nodes)
        self._first = self._closure([start], at_start=True, at_end=False)
        self._states: dict[frozenset[int], dict[str, frozenset[int]]] = {}

    def matches(self, text: str) -> bool:
        """Whether the whole text matches. Raises: PatternError after too many steps."""
        if self._has_boundaries:
            return self._matches_with_boundaries(text)
        state = self._first if text else self._closure([self._start], at_start=True, at_end=True)
        last = len(text) - 1
        for position, char in enumerate(text):
            if not state:
                return False
            if position == last:
                state = self._step(state, char, at_end=True)
                break
            known = self._states.get(state)
            if known is None:
                if len(self._states) >= MAX_STATES:
                    self._states.clear()
                known = self._states[state] = {}
            following = known.get(char)
            if following is None:
                following = self._step(state, char, at_end=False)
                if len(known) < 256:
                    known[char] = following
            state = following
        return any(self._nodes[node][0] == _MATCH for node in state)

    def _matches_with_boundaries(self, text: str) -> bool:
        nodes, before = [self._start], ""
        for position, char in enumerate([*text, ""]):
            is_boundary = _is_word(before) != _is_word(char)
            state = self._closure(nodes, at_start=position == 0, at_end=char == "", is_boundary=is_boundary)
            if not state:
                return False
            taking = (self._nodes[node] for node in state if char and self._nodes[node][0] == _TAKE)
            nodes = [following for _, takes, following, _ in taking if takes(char)]  # type: ignore[operator]
            before = char
        return any(self._nodes[node][0] == _MATCH for node in state)

    def _step(self, state: frozenset[int], char: str, *, at_end: bool) -> frozenset[int]:
        taken = []
        for node in state:
            kind, takes, following, _ = self._nodes[node]
            if kind == _TAKE and takes(char):  # type: ignore[operator]
                taken.append(following)
        self._count(len(state))
        return self._closure(taken, at_start=False, at_end=at_end)

    def _closure(self, nodes: list[int], *, at_start: bool, at_end: bool, is_boundary: bool = False) -> frozenset[int]:
        """The nodes that are reached without a character, as far as they take one or match."""
        seen = set(nodes)
        left = list(nodes)
        while left:
            kind, _, following, other = self._nodes[left.pop()]
            if kind in (_TAKE, _MATCH) or (kind == _START and not at_start) or (kind == _END and not at_end):
                continue
            if (kind == _BOUNDARY and not is_boundary) or (kind == _NO_BOUNDARY and is_boundary):
                continue
            for one in (following, other):
                if one >= 0 and one not in seen:
                    seen.add(one)
                    left.append(one)
        self._count(len(seen))
        return frozenset(node for node in seen if self._nodes[node][0] in (_TAKE, _MATCH))

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise PatternError("the pattern costs too much: make it simpler")

    def _add(self, kind: int, takes: object = None, following: int = -1, other: int = -1) -> int:
        if len(self._nodes) >= MAX_NODES:
            raise PatternError(f"the pattern is too large: it needs more than {MAX_NODES} nodes")
        self._nodes.append((kind, takes, following, other))
        return len(self._nodes) - 1

    def _patch(self, ends: list[tuple[int, int]], target: int) -> None:
        for node, which in ends:
            kind, takes, following, other = self._nodes[node]
            self._nodes[node] = (kind, takes, target, other) if which == 0 else (kind, takes, following, target)


Ends = list[tuple[int, int]]  # node, and which of its two successors is still open
Part = tuple[int, Ends]  # where it begins, and what it leaves open


class _Parser:
    """Recursive descent over the pattern; repeats parse their operand again, so that each has its own nodes."""

    def __init__(self, text: str, add: Callable[..., int], patch: Callable[[Ends, int], None]) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._range_count = 0
        self._add = add
        self._patch = patch
        self._fold = False
        self._dot_all = False

    def parse(self) -> Part:
        part = self._alternatives()
        if self._at < len(self._text):
            raise self._error("unexpected )")
        return part

    def _error(self, reason: str) -> PatternError:
        return PatternError(f"{reason} at position {self._at}")

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _eat(self, word: str) -> bool:
        if self._text.startswith(word, self._at):
            self._at += len(word)
            return True
        return False

    def _alternatives(self) -> Part:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error("groups are nested too deeply")
        flags = self._fold, self._dot_all
        part = self._sequence()
        while self._eat("|"):
            other = self._sequence()
            part = self._add(_SPLIT, None, part[0], other[0]), part[1] + other[1]
        self._fold, self._dot_all = flags
        self._depth -= 1
        return part

    def _sequence(self) -> Part:
        part = self._empty()
        while self._next() not in ("", "|", ")"):
            following = self._repeated()
            self._patch(part[1], following[0])
            part = part[0], following[1]
        return part

    def _empty(self) -> Part:
        node = self._add(_SPLIT)
        return node, [(node, 0)]

    def _repeated(self) -> Part:
        begins, flags = self._at, (self._fold, self._dot_all)
        part = self._atom()
        while True:
            ends = self._at
            bounds = self._bounds()
            if bounds is None:
                return part
            self._eat("?")  # lazy ones match the same texts
            if self._next() and self._next() in "*+?":
                raise self._error("a repeat of a repeat")
            after = self._at
            low, high = bounds
            if (low, high) == (0, -1):
                part = self._star(part)
            elif (low, high) == (1, -1):
                node = self._add(_SPLIT, None, part[0])
                self._patch(part[1], node)
                part = part[0], [(node, 1)]
            elif (low, high) == (0, 1):
                node = self._add(_SPLIT, None, part[0])
                part = node, [*part[1], (node, 1)]
            else:
                part = self._counted(begins, ends, flags, low, high)
            self._at = after

    def _star(self, part: Part) -> Part:
        node = self._add(_SPLIT, None, part[0])
        self._patch(part[1], node)
        return node, [(node, 1)]

    def _bounds(self) -> tuple[int, int] | None:
        for sign, bounds in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self._eat(sign):
                return bounds
        if self._next() != "{":
            return None
        close = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(close, self._at + 1)].partition(",")
        if (
            close < 0
            or not (low.isascii() and low.isdigit())
            or not (high == "" or (high.isascii() and high.isdigit()))
        ):
            return None  # as RE2: a brace that counts nothing is a character
        if len(low) > 4 or len(high) > 4:
            raise self._error(f"a repeat of more than {MAX_REPEAT}")
        least, most = int(low), int(high) if high else -1 if comma else int(low)
        if max(least, most) > MAX_REPEAT or (most >= 0 and most < least):
            raise self._error(f"a repeat that cannot be, or of more than {MAX_REPEAT}")
        self._at = close + 1
        return least, most

    def _counted(self, begins: int, ends: int, flags: tuple[bool, bool], low: int, high: int) -> Part:
        """The operand ``low`` times, then up to ``high`` times; it is parsed again for each."""
        after = self._at

        def again() -> Part:
            self._at, (self._fold, self._dot_all) = begins, flags
            part = self._atom()
            if self._at < ends:
                raise self._error("a repeat of a repeat")
            return part

        part = self._empty()
        for _ in range(low):
            one = again()
            self._patch(part[1], one[0])
            part = part[0], one[1]
        if high < 0:
            one = self._star(again())
            self._patch(part[1], one[0])
            part = part[0], one[1]
        left_open: Ends = []
        for _ in range(max(0, high - low)):
            one = again()
            node = self._add(_SPLIT, None, one[0])
            self._patch(part[1], node)
            left_open.append((node, 1))
            part = part[0], one[1]
        self._at = after
        return part[0], part[1] + left_open

    def _atom(self) -> Part:
        if self._eat("("):
            return self._group()
        if self._eat("["):
            return self._take(self._class())
        if self._eat("."):
            return self._take([("\0", _LAST)] if self._dot_all else [("\0", "\t"), ("\v", _LAST)], fold=False)
        if self._eat("^"):
            return self._assert(_START)
        if self._eat("$"):
            return self._assert(_END)
        if self._eat("\\"):
            return self._escape()
        char = self._next()
        if char in ("*", "+", "?"):
            raise self._error("nothing to repeat")
        self._at += 1
        return self._take([(char, char)])

    def _assert(self, kind: int) -> Part:
        node = self._add(kind)
        return node, [(node, 0)]

    def _take(self, ranges: Ranges, *, fold: bool | None = None) -> Part:
        node = self._add(_TAKE, _predicate(ranges, self._fold if fold is None else fold))
        return node, [(node, 0)]

    def _group(self) -> Part:
        flags = self._fold, self._dot_all
        if self._eat("?"):
            if self._eat("P<") or self._eat("<"):
                close = self._text.find(">", self._at)
                if close < 0 or not self._text[self._at : close].isidentifier():
                    raise self._error("a group's name")
                self._at = close + 1
            elif not self._flags():
                return self._empty()  # (?i) holds for the rest of the group around it
        part = self._alternatives()
        if not self._eat(")"):
            raise self._error("expected )")
        self._fold, self._dot_all = flags
        return part

    def _flags(self) -> bool:
        """Read flags of a group; False if no group follows them."""
        value = True
        while True:
            char = self._next()
            self._at += 1
            if char == "i":
                self._fold = value
            elif char == "s":
                self._dot_all = value
            elif char == "-" and value:
                value = False
            elif char == ":":
                return True
            elif char == ")":
                return False
            elif char != "U":  # greedy or lazy: the same texts
                raise self._error("an unknown flag or kind of group")

    def _escape(self) -> Part:
        if self._eat("Q"):
            close = self._text.find("\\E", self._at)
            quoted = self._text[self._at : close if close >= 0 else len(self._text)]
            self._at = close + 2 if close >= 0 else len(self._text)
            part = self._empty()
            for char in quoted:
                one = self._take([(char, char)])
                self._patch(part[1], one[0])
                part = part[0], one[1]
            return part
        if self._eat("A"):
            return self._assert(_START)
        if self._eat("z"):
            return self._assert(_END)
        if self._eat("b"):
            return self._assert(_BOUNDARY)
        if self._eat("B"):
            return self._assert(_NO_BOUNDARY)
        return self._take(self._escaped())

    def _escaped(self) -> Ranges:
        """The characters of an escape, behind its backslash."""
        char = self._next()
        self._at += 1
        if char.lower() in _PERL:
            ranges = _PERL[char.lower()]
            return ranges if char.islower() else _complement(ranges)
        if char == "x":
            return [(self._hex(),) * 2]
        if char in _CONTROL:
            return [(_CONTROL[char],) * 2]
        if not char or (char.isascii() and char.isalnum()):
            raise self._error("an unknown escape")
        return [(char, char)]

    def _hex(self) -> str:
        if self._eat("{"):
            close = self._text.find("}", self._at)
            digits = self._text[self._at : max(close, self._at)]
            self._at = close + 1
        else:
            digits = self._text[self._at : self._at + 2]
            self._at += 2
        if not 1 <= len(digits) <= 6 or any(one not in "0123456789abcdefABCDEF" for one in digits):
            raise self._error("a character by its number")
        number = int(digits, 16)
        if number > 0x10FFFF:
            raise self._error("a character by its number")
        return chr(number)

    def _class(self) -> Ranges:
        is_negated = self._eat("^")
        ranges: Ranges = []
        is_first = True
        while is_first or self._next() != "]":
            is_first = False
            self._range_count += 1
            if self._range_count > MAX_RANGES:
                raise PatternError(f"the pattern is too large: its classes need more than {MAX_RANGES} ranges")
            if not self._next():
                raise self._error("expected ]")
            if self._eat("[:"):
                close = self._text.find(":]", self._at)
                name = self._text[self._at : max(close, self._at)]
                self._at = close + 2
                if close < 0 or name.removeprefix("^") not in _POSIX:
                    raise self._error("an unknown class")
                named = _POSIX[name.removeprefix("^")]
                ranges += _complement(named) if name.startswith("^") else named
                continue
            one = self._escaped() if self._eat("\\") else [(self._char(),) * 2]
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                other = self._escaped() if self._eat("\\") else [(self._char(),) * 2]
                if any(len(part) > 1 or part[0][0] != part[0][1] for part in (one, other)) or one > other:
                    raise self._error("a range that cannot be")
                one = [(one[0][0], other[0][1])]
            ranges += one
        self._at += 1
        if self._fold:
            ranges = ranges + [(a, b) for low, high in ranges for a, b in _other_case(low, high)]
        return _complement(ranges) if is_negated else ranges

    def _char(self) -> str:
        char = self._next()
        self._at += 1
        return char


def _is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())


def _other_case(low: str, high: str) -> Ranges:
    """The letters of the other case within a range, as far as ASCII goes."""
    found = []
    for first, last, shift in (("a", "z", -32), ("A", "Z", 32)):
        a, b = max(low, first), min(high, last)
        if a <= b:
            found.append((chr(ord(a) + shift), chr(ord(b) + shift)))
    return found


def _complement(ranges: Ranges) -> Ranges:
    found: Ranges = []
    start = 0
    for low, high in sorted(ranges):
        if ord(low) > start:
            found.append((chr(start), chr(ord(low) - 1)))
        start = max(start, ord(high) + 1)
    if start <= ord(_LAST):
        found.append((chr(start), _LAST))
    return found


def _predicate(ranges: Ranges, fold: bool) -> Predicate:
    if fold:
        ranges = ranges + [one for low, high in ranges for one in _other_case(low, high)]
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
