"""Patterns of clients: their matches, their errors, and their linear cost."""

import itertools
import re
from unittest.mock import Mock

import pytest

from kbroker.common.java import pattern_parser, unicode_tables
from kbroker.common.java.character_classes import complement
from kbroker.common.java.linear_pattern import MAX_STEPS, LinearPattern, PatternError

TEXTS = [
    "", "a", "b", "ab", "aab", "abab", "aaaa", "A", "0", "a-1", "tx-12", "x\ny", "é", "_", "a.b", "]", "{", "-",
    " ",
]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        "", "a", "a*", "a+b", "(ab)+", "(ab){2}", "a{2,}", "a{0,3}", "a{1}b?", "a|b|", ".*", "a.*", "[a-c]+",
        "[^a]", "[^a-z]*", r"\w+-\d+", r"\W", r"[\d_]+", r"a\.b", "^a$", "a$|^b", "(?:a|ab)(?:b|)", "(?P<n>a)b",
        "(a*)*", "(a|a)*", r"\D*", r"\s", "[]]", "[a-]+", "(?i)AB", "a??b", "a+?", "(a{0,2}){0,2}", "x.y",
        "(?s)x.y", r"\x61", "a{,2}", r"[\]]",
    ],
)  # fmt: skip
def test_as_python_matches(pattern: str) -> None:
    """A pattern matches whole texts as Python's engine does, where both have the syntax."""
    mine = LinearPattern(pattern)
    theirs = re.compile(pattern.replace("a{,2}", r"a\{,2\}"), re.ASCII)
    for text in TEXTS:
        assert mine.matches(text) == (theirs.fullmatch(text) is not None), text


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"\Qa.b\E+", "a.bb", True), (r"\Qa.b\E+", "a.ba.b", False), (r"\p{Lu}\p{L}*\PL", "Été1", True),
        (r"\p{Greek}+[^\p{Cyrillic}]", "αβя", False), (r"(?i)\p{Lu}", "é", True), ("(?i)k", "\u212a", True),
        ("(?m)^a$\n^b$", "a\nb", True), ("^a$\n^b$", "a\nb", False), (r"\141\0", "a\0", True),
        (r"[\d-z]", "z", True), ("(?P<1>a)", "a", True), ("a{01}", "a{01}", True),
        ("(" * 999 + "a" + ")" * 999, "a", True), (r"\Qa.b", "a.b", True), ("[[:alpha:]]+", "abC", True),
        ("[[:^alpha:]]", "1", True), (r"\x{1F600}", "\U0001f600", True), (r"\Aa\z", "a", True),
        ("(?i:a)b", "Ab", True), ("(?i:a)b", "AB", False), ("(?i)[a-c]+", "aBC", True), ("(?i)[^a]", "A", False),
        ("(?<n>a)", "a", True), ("a(?i)b|c", "aB", True),
    ],
)  # fmt: skip
def test_what_re2_knows(pattern: str, text: str, expected: bool) -> None:
    assert LinearPattern(pattern).matches(text) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "[", "(", ")", "a)", "(a", "*", "+a", "a**", "[b-a]", r"\p{Foo}", r"\p{L", r"\1", r"\k<n>", "(?=a)",
        "(?!a)", "(?<=a)b", "\\", "a{1001}", "a{2,1}", "(a{1000}){1000}", "[[:nothing:]]", r"\xzz", r"[a-\d]",
        "(" * 1500 + ")" * 1500, "(?-:a)", "(?P<n>a)(?P<n>b)", "(?z)", "(?", "a{99999999999999}", "(?P<é>a)", "[a",
        r"\x{110000}", "[[:alpha",
    ],
)  # fmt: skip
def test_what_is_no_pattern(pattern: str) -> None:
    """Wrong syntax, features that no automaton has, and patterns that are too large are errors."""
    with pytest.raises(PatternError):
        LinearPattern(pattern)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "a*a*a*a*a*b", "(.*)(.*)(.*)(.*)(.*)[^a]"])
def test_hostile_patterns_cost_linear_time(pattern: str) -> None:
    """Patterns whose cost is exponential in a backtracking engine cost linear time."""
    assert not LinearPattern(pattern).matches("a" * 32_767)


def test_a_bound_on_all_texts() -> None:
    """A large pattern against many long texts ends with an error before the broker is busy."""
    mine = LinearPattern("(?:a?b?c?){200}")
    mine.steps = MAX_STEPS - 5000
    assert mine.matches("a")
    with pytest.raises(PatternError, match="costs too much"):
        mine.matches("abc" * 200)


@pytest.mark.parametrize(
    "pattern",
    ["a" * 32_768, "[" + "ab" * 12_000 + "]", r"[\pL]" * 200, "(?i)" + "[B-\U0010ffff]" * 50, "(?:a?b?){1000}{1000}"],
    ids=["long", "class", "Unicode classes", "all letters of both cases", "nodes"],
)
def test_what_takes_too_much_memory(pattern: str) -> None:
    with pytest.raises(PatternError, match=r"too l|repeat of a repeat"):
        LinearPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "[" + "".join(chr(0x4E00 + 2 * index) for index in range(1000)) + "]{1000}",
        "[" + "[:^alnum:]" * 100 + "]{1000}",
        r"(?:\pL{10}){100}",
    ],
    ids=["a class", "named classes", "a Unicode class"],
)
def test_repeats_of_a_class_share_its_ranges(pattern: str) -> None:
    """Repeats share the ranges; copies for a thousand repeats would take a gigabyte and eight seconds."""
    takes = {id(node[1]) for node in LinearPattern(pattern)._nodes if callable(node[1])}
    assert len(takes) == 1


def test_a_class_is_computed_once_for_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern in one request names a class 10,000 times, whose ranges in all cases take 10 ms."""
    computed = Mock(side_effect=complement)
    monkeypatch.setattr(pattern_parser, "complement", computed)
    assert not LinearPattern("(?i)" + r"\PL\p{^L}\P{L}" * 100).matches("1")
    computed.assert_called_once()


def test_unknown_classes_leave_nothing_in_memory() -> None:
    """Clients choose these names, of up to 32 KB each."""
    kept = unicode_tables._ranges_of.cache_info().currsize
    for name in ("Nothing", "None"):
        with pytest.raises(PatternError, match="no Unicode class"):
            LinearPattern(rf"\p{{{name}}}")
    assert unicode_tables._ranges_of.cache_info().currsize == kept


def test_overlapping_ranges() -> None:
    matches = LinearPattern("[a-fc-hx0-9m-mb]+").matches
    assert [char for char in map(chr, range(256)) if matches(char)] == [*"0123456789abcdefghmx"]


@pytest.mark.parametrize(
    "pattern",
    [
        r"\ba.*", r"a\b.*", r".*\bab\b.*", r"a\Bb", r"\B.*", r".*\B", r"(?:\b|x)*a", r"\b", r"\B", r".*a\b",
        r"\b\b.*\B-\B.*",
    ],
)  # fmt: skip
def test_word_boundaries(pattern: str) -> None:
    """Boundaries are Python's for ASCII, except in the empty text, where Python before 3.14 has no \\B."""
    matches, expected = LinearPattern(pattern).matches, re.compile(pattern, re.ASCII)
    for length in range(1, 5):
        for text in map("".join, itertools.product("ab-.", repeat=length)):
            assert matches(text) == (expected.fullmatch(text) is not None), text


def test_word_boundaries_of_an_empty_text() -> None:
    assert not LinearPattern(r"\b").matches("")
    assert LinearPattern(r"\B").matches("")


def test_parts_that_are_repeated_no_time_cost_what_others_do() -> None:
    """Parts that are repeated zero times leave no nodes, but count towards the limit."""
    assert LinearPattern("(?:a{900}){0}b").matches("b")
    with pytest.raises(PatternError, match="too large"):
        LinearPattern("(?:a{900}){0}" * 12)
