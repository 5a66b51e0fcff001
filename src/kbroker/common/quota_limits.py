"""Limits of quotas as people write and read them, each kind with its unit: 1 MiB/s, 5/s, 50 %."""

from __future__ import annotations

import math
from collections.abc import Callable

from kbroker.common.quotas import CLIENT_KEYS, CONNECTION_CREATION_RATE, IP_KEYS, enforced_key, with_shadows
from kbroker.common.similar_names import ALMOST, did_you_mean
from kbroker.common.units import EXAMPLES, exact_bytes, parse_byte_rate, parse_percentage, parse_rate

BYTE_RATES = ("consumer_byte_rate", "producer_byte_rate")
RATES = ("controller_mutation_rate", CONNECTION_CREATION_RATE)
PERCENTAGE = "request_percentage"


def check_key(key: str) -> None:
    """Reject a key that misspells a quota. A key unlike all known ones may be newer; the broker decides.

    Raises: ValueError.
    """
    known = with_shadows({**CLIENT_KEYS, **IP_KEYS})
    if key not in known and (hint := did_you_mean(key, known, ALMOST)):
        raise ValueError(f"unknown quota {key!r}{hint}")


def parse_limit(key: str, text: str) -> float:
    """Return the limit of quota ``key`` as a number: bytes per second, a number per second, or percent.

    A shadow's limit is written like that of its enforced quota. An unknown key accepts plain numbers; the broker
    decides.
    Raises: ValueError with a message for the user.
    """
    parse: Callable[[str], float] = float
    expected = "a number"
    of = enforced_key(key)
    if of in BYTE_RATES:
        parse, expected = parse_byte_rate, f"bytes per second such as {EXAMPLES}"
    elif of in RATES:
        parse, expected = parse_rate, "a number, or a number per second such as 5/s"
    elif of == PERCENTAGE:
        parse, expected = parse_percentage, "a number of percent"
    try:
        return parse(text)
    except ValueError:
        raise ValueError(f"{key}: expected {expected}, got {text!r}") from None


def limit_text(key: str, value: float | None) -> str:
    """Return the limit in full, with its unit; "-" for None. `parse_limit` reads it."""
    if value is None:
        return "-"
    of = enforced_key(key)
    if of in BYTE_RATES and math.isfinite(value):
        return f"{exact_bytes(value)}/s"
    if of in RATES:
        return f"{number_text(value)}/s"
    return f"{number_text(value)} %" if of == PERCENTAGE else number_text(value)


def number_text(value: float) -> str:
    """Return a number in the fewest digits that identify it, without ``.0``."""
    return str(value if math.isinf(value) else json_number(value))


def json_number(value: float | None) -> int | float | str | None:
    """Return the value as JSON has it, which `parse_limit` reads: whole as an int, infinite as text; None as it is."""
    if value is not None and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value is not None and float(value).is_integer() and abs(value) < 1e16 else value
