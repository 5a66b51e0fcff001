"""Regular expressions of clients, matched in time linear in the text, for any pattern.

A pattern matches a whole text; its syntax is that of ``pattern_parser``. It becomes a nondeterministic automaton, whose
deterministic states are built on demand, and discarded when there are too many. A pattern with word boundaries or line
anchors has no deterministic states: the reached nodes also depend on the next character.
Source: KIP-1152; RE2/J; Thompson's construction.
"""

from __future__ import annotations

from kbroker.common.java.pattern_parser import (
    ASSERT,
    LINE_END,
    LINE_START,
    MATCH,
    NO_WORD_BOUNDARY,
    TAKE,
    TEXT_END,
    TEXT_START,
    WORD_BOUNDARY,
    PatternError,
    parse,
)

__all__ = ["MAX_STEPS", "LinearPattern", "PatternError"]

MAX_STATES = 500  # maximum number of deterministic states kept
MAX_STEPS = 4_000_000  # maximum number of nodes visited for one pattern, over all texts

_NEEDS_NEXT = WORD_BOUNDARY | NO_WORD_BOUNDARY | LINE_START | LINE_END


class LinearPattern:
    """A compiled pattern.

    Args: ``most_steps``: maximum number of steps over all texts. Threads: one at a time.
    """

    def __init__(self, pattern: str, most_steps: int = MAX_STEPS) -> None:
        """Parse the pattern. Raises: PatternError."""
        self.steps = 0  # nodes visited so far
        self._most_steps = most_steps
        self._nodes, self._start = parse(pattern)
        asserted = 0
        for node in self._nodes:
            if node[0] == ASSERT:
                asserted |= node[1]  # type: ignore[operator]
        self._needs_next = bool(asserted & _NEEDS_NEXT)
        self._first = self._closure([self._start], TEXT_START)
        self._states: dict[frozenset[int], dict[str, frozenset[int]]] = {}

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches. Raises: PatternError after too many steps."""
        if self._needs_next:
            return self._matches_looking_ahead(text)
        state = self._first if text else self._closure([self._start], TEXT_START | TEXT_END)
        last = len(text) - 1
        for position, char in enumerate(text):
            if not state:
                return False
            if position == last:
                state = self._step(state, char, TEXT_END)
                break
            known = self._states.get(state)
            if known is None:
                if len(self._states) >= MAX_STATES:
                    self._states.clear()
                known = self._states[state] = {}
            following = known.get(char)
            if following is None:
                following = self._step(state, char, 0)
                if len(known) < 256:
                    known[char] = following
            state = following
        return any(self._nodes[node][0] == MATCH for node in state)

    def _matches_looking_ahead(self, text: str) -> bool:
        nodes, before = [self._start], ""
        for char in (*text, ""):
            state = self._closure(nodes, _holding(before, char))
            if not state:
                return False
            if char:
                nodes = self._taken(state, char)
            before = char
        return any(self._nodes[node][0] == MATCH for node in state)

    def _step(self, state: frozenset[int], char: str, holds: int) -> frozenset[int]:
        taken = self._taken(state, char)
        self._count(len(state))
        return self._closure(taken, holds)

    def _taken(self, state: frozenset[int], char: str) -> list[int]:
        """Return the successors of the nodes that accept a character."""
        taken = []
        for node in state:
            kind, takes, following, _ = self._nodes[node]
            if kind == TAKE and takes(char):  # type: ignore[operator, misc]
                taken.append(following)
        return taken

    def _closure(self, nodes: list[int], holds: int) -> frozenset[int]:
        """Return the nodes reached without a character that accept one or match; ``holds``: true assertions."""
        seen = set(nodes)
        left = list(nodes)
        found = []
        while left:
            at = left.pop()
            kind, asserted, following, other = self._nodes[at]
            if kind in (TAKE, MATCH):
                found.append(at)
                continue
            if kind == ASSERT and not asserted & holds:  # type: ignore[operator]
                continue
            for one in (following, other):
                if one >= 0 and one not in seen:
                    seen.add(one)
                    left.append(one)
        self._count(len(seen))
        return frozenset(found)

    def _count(self, steps: int) -> None:
        self.steps += steps
        if self.steps > self._most_steps:
            raise PatternError("the pattern costs too much: make it simpler")


def _holding(before: str, after: str) -> int:
    """Return the assertions that are true between two characters; "" is an end of the text."""
    holds = WORD_BOUNDARY if _is_word(before) != _is_word(after) else NO_WORD_BOUNDARY
    if not before:
        holds |= TEXT_START | LINE_START
    elif before == "\n":
        holds |= LINE_START
    if not after:
        holds |= TEXT_END | LINE_END
    elif after == "\n":
        holds |= LINE_END
    return holds


def _is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())
