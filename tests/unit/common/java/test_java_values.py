"""Numbers and lists as Java reads and prints them; the expected texts are Java's output or its documentation."""

import math

import pytest

from kbroker.common.java.java_patterns import is_java_pattern
from kbroker.common.java.java_values import double_text, parse_double, parse_long, split_list, trim


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (100.0, "100.0"), (0.001, "0.001"), (0.0001, "1.0E-4"),
     (1e-5, "1.0E-5"), (-1.5e-7, "-1.5E-7"), (9999999.0, "9999999.0"), (1e7, "1.0E7"), (12345678.9, "1.23456789E7"),
     (1234567.25, "1234567.25"), (2e23, "2.0E23"), (4.9e-324, "4.9E-324"), (1.7976931348623157e308,
     "1.7976931348623157E308"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN"), (0.1, "0.1")],
)  # fmt: skip
def test_doubles_are_printed(value: float, text: str) -> None:
    """Values from 0.001 to 10,000,000 have no exponent, others have one, and each has at least two digits."""
    assert double_text(value) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("5e-1f", 0.5), ("5E-1D", 0.5), ("0x1p-1", 0.5), ("0X.8P0d", 0.5), ("-0x1.8p1", -3.0), (".5", 0.5), ("5.", 5.0),
     (" \t1 \n", 1.0), ("1e400", math.inf), ("0x1p9999", math.inf), ("-0x1p9999", -math.inf), ("+Infinity", math.inf),
     ("-Infinity", -math.inf), ("1e-400", 0.0), ("0x1", None), ("inf", None), ("nan", None), ("1_0", None), ("", None),
     (".", None), ("1e", None), ("٣", None), ("0.5L", None), ("\u00a05", None), ("1 2", None), ("0xp1", None)],
)  # fmt: skip
def test_doubles_are_read(text: str, value: float | None) -> None:
    """The accepted texts are those of Double.parseDouble."""
    assert parse_double(text) == value


def test_not_a_number_is_read() -> None:
    """NaN may have a sign."""
    assert all(math.isnan(parse_double(text) or 0) for text in ("NaN", "-NaN", " +NaN"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("+5", 5), ("-0", 0), ("0" * 5000 + "7", 7), ("-9223372036854775808", -(2**63)), ("٣", 3), ("９", 9),
     ("", None), ("+", None), ("1_0", None), (" 5", None), ("5L", None), ("0x5", None), ("9" * 5000, None),
     ("\U0001d7d9", None), ("²", None)],
)  # fmt: skip
def test_whole_numbers_are_read(text: str, value: int | None) -> None:
    """Digits of any script are accepted, blanks and underscores are not, and a long number is parsed fast."""
    assert parse_long(text) == value


def test_lists_are_read() -> None:
    """Blanks around commas are ignored, and empty words are kept."""
    assert split_list(" a ,\tb\n") == ("a", "b")
    assert (split_list(""), split_list(" "), split_list(","), split_list("a,")) == ((), (), ("", ""), ("a", ""))
    assert (trim("\x00 a\x1f"), trim("\u00a0a")) == ("a", "\u00a0a")


@pytest.mark.parametrize("text", ["a", r"\d+", "(?<n>a)", r"\p{L}+", r"\p{javaLowerCase}", "a*+", r"\Q[\E", "(?>a)"])
def test_patterns_of_java(text: str) -> None:
    """Forms that only Java has are patterns too."""
    assert is_java_pattern(text)


@pytest.mark.parametrize("text", ["[", "*", "(", "a{2,1}", "(?<1>a)", "\\"])
def test_what_is_no_pattern(text: str) -> None:
    assert not is_java_pattern(text)
