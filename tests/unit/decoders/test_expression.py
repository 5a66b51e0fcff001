"""Filter expressions: the document of a record, and limits of time and memory."""

import time
from typing import Any

import pytest

from kbroker.decoders.decoders import Decoders
from kbroker.decoders.expression import Expression, ExpressionError, document

pytest.importorskip("jmespath")


def record(value: bytes | None = b'{"amount": 120, "lines": [{"sku": "a"}]}', key: bytes | None = b"k1") -> Any:
    return Decoders().record("orders", 3, 41, 1_700_000_000_000, key, value, [("type", b"order"), ("empty", None)])


def test_the_document_of_a_record() -> None:
    assert document(record()) == {
        "key": "k1",
        "value": {"amount": 120, "lines": [{"sku": "a"}]},
        "topic": "orders",
        "partition": 3,
        "headers": {"type": "order", "empty": None},
        "offset": 41,
        "timestamp": 1_700_000_000_000,
    }
    assert document(record(b"1" * 5000, None)) | {"headers": 0} == {
        "key": None,
        "value": "1" * 5000,
        "topic": "orders",
        "partition": 3,
        "headers": 0,
        "offset": 41,
        "timestamp": 1_700_000_000_000,
    }


@pytest.mark.parametrize(
    ("text", "is_match"),
    [
        ("value.amount > `100`", True),
        ("value.amount > `120`", False),
        ("headers.type == 'order' && partition == `3`", True),
        ("starts_with(key, 'k') && offset >= `41`", True),
        ("value.lines[?sku == 'a']", True),
        ("value.lines[?sku == 'b']", False),
        ("contains(value.lines[*].sku, 'a')", True),
        ("contains(value.nothing, 'a')", False),  # member that the record does not have
        ("value.nothing.at.all", False),
        ("join(',', value.lines[*].sku) == 'a'", True),
        ('to_string(value.lines) == \'[{"sku":"a"}]\'', True),
        ("!(value.paid)", True),
        ("floor(to_number('nan'))", False),  # a number in Python, but not in JSON
        ("value.lines[::0]", False),
    ],
)
def test_matches(text: str, is_match: bool) -> None:
    assert Expression(text).matches(record()) is is_match


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("value.amount >", "expected a JMESPath expression"),
        ("", "expected a JMESPath expression"),
        ("!(valeu.amount > `1`) || key", "expected one of key, value, headers.*, got 'valeu'"),
        ("length(values)", "got 'values'"),
        ("value.lines[?amount > `1`].sku", None),
        ("valeu", "expected one of key, value"),
        ("nothing(value)", r"expected a function of JMESPath, got nothing\(\)"),
        ("length(value, key)", r"length\(\) takes 1 arguments, got 2"),
        ("contains(['a', 'b'], key)", r"\[a, b\] and {a: b} make new values"),
        ("value || {a: key}", r"make new values"),
        ("key" + " " * 1000, "at most 1000 characters, got 1003"),
    ],
)
def test_refused(text: str, reason: str | None) -> None:
    if reason is None:
        assert not Expression(text).matches(record())
        return
    with pytest.raises(ExpressionError, match=reason):
        Expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "value" + " | [*]" * 160,
        "value | sort_by(@, &@) | sort_by(@, &@) | sort_by(@, &@)",
        "join(to_string(value), value[*].to_string(@))",
        "value" + " | sort(@)" * 90,
        "value" + "[]" * 100,
        "value | to_string(@)" + " | reverse(@)" * 70,
    ],
)
def test_no_expression_takes_long(text: str) -> None:
    """Each of these expressions would take minutes or gigabytes without limits."""
    value = b"[" + b",".join(b"%d" % n for n in range(60_000)) + b"]"
    found, expression = record(value), Expression(text)
    started = time.process_time()
    with pytest.raises(ExpressionError, match=r"steps|characters"):
        expression.matches(found)
    assert time.process_time() - started < 3


def test_quotes_that_double() -> None:
    """Each pair of functions doubles the backslashes, to 2^40 at the end."""
    text = "key"
    for _ in range(40):
        text = f"to_string(to_array({text}))"
    with pytest.raises(ExpressionError, match="characters"):
        Expression(text).matches(record(key=b'"'))
