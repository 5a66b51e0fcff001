"""Hashes of Java's strings."""

from enum import Enum

import pytest

from kbroker.common.java._string_hash import string_hash


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("hello", 99162322),
        ("polygenelubricants", -(1 << 31)),
        ("\xe9", 233),
        ("\u20ac", 8364),
        ("\U0001f600", 1772899),
        ("\ud83d\ude00", 1772899),
        ("a\ud83d", 97 * 31 + 0xD83D),
    ],
)
def test_the_hash_is_that_of_java(text: str, value: int) -> None:
    """The hash covers the UTF-16 units of a text and overflows as a Java int does."""
    assert string_hash(text) == value


def test_a_subclass_of_str_has_the_hash_of_its_text() -> None:
    class Name(str, Enum):
        GREETING = "hello"

    assert string_hash(Name.GREETING) == string_hash("hello")


def test_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="str"):
        string_hash(b"hello")  # type: ignore[arg-type]
