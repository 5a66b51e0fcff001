"""Clients' regular expressions with kbroker and with RE2/J, which Kafka uses: validity and matches."""

import random
from pathlib import Path

import pytest

from kbroker.common.java.linear_pattern import LinearPattern, PatternError
from tests.support import need
from tests.support.broker import run_to_end
from tests.support.kafka import compiled, java_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SOURCE = Path(__file__).parents[1] / "support" / "java" / "re2j" / "PatternVerdicts.java"

FIXED = [
    "", "a", "a|b|", "(", ")", "(a", "a)", "*", "+a", "a**", "a*?", "a*??", "a{2}{3}", "a{2}*", "a*{0,}", "a{,2}",
    "a{01}", "a{2,1}", "a{1001}", "a{1000}", "a{0}", "(a|b){0}c", "a{0,0}", "(?i)*", "a(?i)*", "a*(?i)*", "(|*)",
    "(?i", "(?", "(?)", "(?-)", "(?-:a)", "(?i-)a", "(?i-s:A)", "(?-i)a", "(?i--s)a", "(?z)", "(?P<1>a)",
    "(?P<a>a)(?P<a>b)", "(?<n>a)", "(?P<>a)", "(?P<é>a)", "(?P=n)", "(?P<n", "(?=a)", "(?!a)", "(?<=a)b", "(?#a)",
    r"\1", r"\12", r"\141", r"\0", r"\08", r"\8", r"\x61", r"\x{61}", r"\x{000061}", r"\x{}", r"\x{", r"\x{g}",
    r"\x6", r"\x", r"\x{110000}", r"\x{0000000000061}", "\\", r"\C", r"\Z", r"\G", r"\A\z", r"\a\f\n\r\t\v", r"\e",
    r"\c", r"\_", r"\-", r"\é", r"\Qa.b", r"\Qab\E*", r"\Q\E*", r"a\Q\E*", r"\Q*\E", r"\E", "[", "[]", "[]]", "[^]]",
    "[^]", "[a-]", "[-a]", "[--a]", "[a--]", "[b-a]", r"[\d-z]", r"[a-\d]", r"[\]]", "[[:alpha:]]", "[[:^alpha:]]",
    "[[:nothing:]]", "[[:alpha]", "[[:alpha", "[[:alpha:]", "[:alpha:]", "[[.a.]]", r"[\b]", r"[\A]", "[a-c&&b]",
    r"\pL", r"\p{L}", r"\PL", r"\P{L}", r"\p{^L}", r"\P{^L}", r"\p{Lu}+", r"(?i)\p{Lu}+", r"(?i)\P{Lu}+",
    r"\p{Greek}", r"\p{Latin}", r"\p{}", r"\p", r"\p{L", r"\p{Foo}", r"\pX", r"\p{Any}", r"(?i)\p{Any}", r"[\pL\d]",
    r"[^\pL]", r"[\p{^L}]", r"\p{greek}", r"[\PN-]", r"[a-\pN]", r"\p{Cyrillic}(?i)\p{Ll}", r"\p{Common}", r"\p{Cs}",
    r"\p{Cn}", r"\p{IsL}", r"\p{Alpha}", r"\p^L", "(?i)k", "(?i)K", "(?i)\u212a", "(?i)ſ", "(?i)S", "(?i)[j-l]",
    "(?i)[^k]", r"(?i)\w", r"(?i)\W", "(?i)[[:lower:]]", "(?i)ß", "(?i)é", "(?i)Σ", "(?i)ǆ", "(?i)İ", "(?i)ı",
    "(?i)[à-ö]", "(?m)^a$", "(?m)a$^b", "(?m)a$\n^b", "a$\n^b", r"(?m)\Aa$\n", "(?m).*$", "(?s).*", ".*", "(?m:^a)$",
    "(?-m)^a$", "(?ms).*^b.*", "^*a", "$*", r"\b*a", "a$b", "a^b", r"a\b\b", r"\Ba", "x{3,5}?", "x{3,5}{", "x{",
    "x{a", "{", "}", "]", "x{1,2", "a{9999}", "a{99999999999}", "a{1,99999}", "(a{0,3}){2}", "((a{2}){3})b?",
    "(a+)+b", "(a|b|ab)*", "(?U)a+?", "a||b", "(|a)+", "(a|)*b", "()*", "(?:)*", "|", "(|)", "a(?#", "(?i)(?-i)A",
    "((?i)a)A", "(?i:a|b)B", "a(?i)b|c", "\0", "é+", "\U0001f600+",
]  # fmt: skip
TEXTS = [
    "", "a", "A", "b", "B", "ab", "aa", "aab", "abab", "aaaa", "aaaaaa", "c", "k", "K", "\u212a", "s", "S", "ſ", "é",
    "É", "ß", "ẞ", "Σ", "σ", "ς", "ǆ", "ǅ", "İ", "ı", "i", "I", "à", "À", "1", "12", "-", "_", ".", "a.b", "a\nb",
    "a\n", "\n", "]", "[", "{", "}", "*", "x{", "x{a", "xxx", "x{3,5}", "\0", "\x01", "8", "\0008", "α", "я", "Я",
    "\U0001f600", "\U0001f600\U0001f600", "tx-12", "abbb", "a b", "a-b", ":", "alpha", "AB", "Ab", "aB", "AAAAAAB",
    "\a\f\n\r\t\v", "a{01}", "a{,2}", "\n8", "E", "j", "J", "l",
]  # fmt: skip
PIECES = [
    "a", "b", "k", "S", ".", "\\w", "\\W", "\\d", "[a-c]", "[^b]", "\\pL", "\\PL", "\\p{Lu}", "^", "$", "\\b", "\\B",
    "\\A", "\\z", "(?i)", "(?m)", "(?s)", "(?-i)", "\\Qa.\\E", "é", "\n", "[[:upper:]\\d]", "\\x{41}", "-", "_",
]  # fmt: skip
REPEATS = ["*", "+", "?", "*?", "{2}", "{0,2}", "{1,}", "{0}", "{,1}", "**"]
FEW, MANY = 700, 20_000  # numbers of random patterns, of which the soak uses the larger one


def made(rng: random.Random, depth: int = 0) -> str:
    """Return a random pattern, which may be invalid."""
    parts = []
    for _ in range(rng.randrange(1, 5)):
        if depth < 3 and rng.random() < 0.3:
            opening = rng.choice(["(", "(?:", "(?i:", "(?m:", "(?-s:"])
            part = opening + made(rng, depth + 1) + ")"
        else:
            part = rng.choice(PIECES)
        parts.append(part + (rng.choice(REPEATS) if rng.random() < 0.3 else ""))
        if rng.random() < 0.15:
            parts.append("|")
    return "".join(parts)


def mine(pattern: str, texts: list[str]) -> str:
    try:
        compiled_one = LinearPattern(pattern)
    except PatternError:
        return "error"
    return "".join("01"[compiled_one.matches(text)] for text in texts)


def theirs(patterns: list[str]) -> list[str]:
    def word(text: str) -> str:
        return "x" + text.encode().hex()

    need.program("java", "javac", "mvn")
    texts = " ".join(map(word, TEXTS))
    command = java_command("com.google.re2j.PatternVerdicts", classes=compiled(SOURCE))
    lines = "".join(f"{word(pattern)} {texts}\n" for pattern in patterns)
    return run_to_end(command, stdin=lines.encode(), seconds=240).splitlines()


def test_the_same_verdicts(soak: bool) -> None:
    """Each pattern is valid for both or invalid for both, and matches the same texts."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    patterns = FIXED + [made(rng) for _ in range(MANY if soak else FEW)]
    found = theirs(patterns)
    assert len(found) == len(patterns)
    wrong = [
        (pattern, there, here)
        for pattern, there in zip(patterns, found, strict=True)
        if (here := mine(pattern, TEXTS)) != there
    ]
    assert not wrong, f"{len(wrong)} differ: {wrong[:5]}"
