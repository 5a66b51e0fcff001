"""Numbers with units: parsing, errors and formatting."""

import pytest

from kbroker.common.units import (
    exact_bytes,
    parse_byte_rate,
    parse_bytes,
    parse_duration,
    parse_percentage,
    parse_rate,
    rounded_bytes,
    rounded_duration,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1048576", 1048576), ("1MB", 1_000_000), ("1mb", 1_000_000), ("1 MB", 1_000_000), ("1MiB", 1 << 20),
        ("1.5 GiB", 3 << 29), ("64kB", 64_000), ("64KB", 64_000), ("64KiB", 65_536), ("2TB", 2 * 10**12),
        ("1e6", 1_000_000), ("0", 0), ("-1", -1), (" 7 B ".rstrip(), 7),
    ],
)  # fmt: skip
def test_bytes_are_read(text: str, expected: float) -> None:
    """Decimal and binary units are read with or without a space, in any case of letters."""
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "fast", "1e999999MB", "1e400", "1Mb", "1M", "1 M B", "MB", "1..2", "0x10", "1MB/s", "nan", "inf", "9" * 61],
)
def test_what_may_mean_something_else_is_refused(text: str) -> None:
    """Megabits, bare prefixes and other text are rejected with examples in the message."""
    with pytest.raises(ValueError, match=r"expected bytes such as 1048576, 1MB \(1,000,000\) or 1MiB"):
        parse_bytes(text)


def test_rates_and_percentages() -> None:
    """The text after the number is optional."""
    assert [parse_byte_rate(t) for t in ("10 MiB/s", "10MiB / s", "10 MiB/sec", "10MiB")] == [10 << 20] * 4
    assert [parse_rate(t) for t in ("5", "5/s", "2.5 /s")] == [5, 5, 2.5]
    assert [parse_percentage(t) for t in ("50", "50%", "50 %")] == [50] * 3


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1_000_000, "1000000 B"),
        (1 << 20, "1 MiB"), (5 << 29, "2.5 GiB"), ((1 << 20) + 1, "1048577 B"), (-2048, "-2 KiB"), (0.5, "0.5 B"),
    ],
)  # fmt: skip
def test_exact_bytes_lose_nothing(number: float, expected: str) -> None:
    """The unit is the largest that shows the number exactly, so that the text is read back as the same number."""
    assert exact_bytes(number) == expected
    assert parse_bytes(expected) == number


def test_rounded_bytes() -> None:
    """Bytes have one decimal of the largest unit."""
    assert [rounded_bytes(n) for n in (0, 1023, 1023.7, 1024, 1_000_000, (1 << 20) - 1, 1 << 30, 1 << 52)] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 KiB", "976.6 KiB", "1.0 MiB", "1.0 GiB", "4096.0 TiB",
    ]  # fmt: skip


def test_rounded_durations() -> None:
    """Long durations have their two largest units, seconds a decimal, and times below ten milliseconds two digits."""
    assert [rounded_duration(ms) for ms in (0, 0.254, 9.94, 9.96, 999.4, 999.6, 59_949, 59_951, 125_999)] == [
        "0 ms", "0.25 ms", "9.9 ms", "10 ms", "999 ms", "1.0 s", "59.9 s", "1 min 0 s", "2 min 6 s",
    ]  # fmt: skip
    hour = 3_600_000
    assert [rounded_duration(n * hour) for n in (1, 2.125, 47.99, 48, 24_000.5)] == [
        "1 h 0 min", "2 h 7 min", "47 h 59 min", "2 d 0 h", "1,000 d 0 h",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500ms", 500), ("30s", 30_000), ("1.5 min", 90_000), ("5m", 300_000), ("2h", 7_200_000), ("1d", 86_400_000)],
)
def test_times_are_read(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "30", "s", "-5s", "1 year", "1e999999999s", "1..5s", "9" * 70 + "s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """A bare number, which could have any unit, and more than thirty thousand years are rejected."""
    with pytest.raises(ValueError, match="expected a time such as 500ms, 30s, 5min, 2h or 1d"):
        parse_duration(text)
