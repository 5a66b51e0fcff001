"""Durations as Java reads them; the expected values are those of ``Duration.parse``."""

import pytest

from kbroker.common.configs.config_def import ConfigError
from kbroker.common.configs.config_resources import GROUP_TABLE
from kbroker.common.java.java_duration import parse_duration_ns

SECOND = 10**9
LAST = (1 << 63) - 1  # seconds


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("P1DT-1S", 86_399 * SECOND), ("-PT-1S", SECOND), ("p+1d", 86_400 * SECOND), ("PT1H-3600S", 0),
        ("-P1DT-2H", -79_200 * SECOND), ("PT1.S", SECOND), ("PT1,5s", 1_500_000_000), ("PT-0.9S", -900_000_000),
        ("PT0000000000000000000000000001S", SECOND), (f"PT{LAST}.9S", LAST * SECOND + 900_000_000),
        ("P106751991167300DT15H30M7S", LAST * SECOND), (f"PT-{LAST + 1}S", -(LAST + 1) * SECOND),
        (f"-PT{LAST}.5S", -LAST * SECOND - 500_000_000), ("P106751991167300DT-9223372036854775808S", -55_808 * SECOND),
    ],
)  # fmt: skip
def test_durations_are_read(text: str, nanoseconds: int) -> None:
    """Each part has its own sign, below that of the whole; fractions belong to the seconds."""
    assert parse_duration_ns(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        "", "P", "PT", "P1DT", "PT.5S", "P1M", "P1W", "1D", "PT1S\n", "PT\u0663S", "PT1\u017f", f"PT{LAST + 1}S",
        "P106751991167301D",
        "PT2562047788015216H", "PT153722867280912931M", "P106751991167300DT15H30M8S", f"-PT-{LAST + 1}S",
        f"PT-{LAST + 1}.5S", "P-106751991167300DT-15H-30M-9S", "P" + "9" * 5000 + "D",
    ],
)  # fmt: skip
def test_other_texts_are_no_durations(text: str) -> None:
    """A text without a part, with other units, or outside the range of Java's class is refused."""
    assert parse_duration_ns(text) is None


@pytest.mark.parametrize(
    ("text", "is_valid"), [("P1DT-1S", True), ("-PT0S", True), ("PT-1S", False), (f"P{LAST}D", False)]
)
def test_first_offsets_of_share_groups_by_duration(text: str, is_valid: bool) -> None:
    """share.auto.offset.reset takes the durations that Java reads and that are not negative."""
    value = f"by_duration:{text}"
    if is_valid:
        assert GROUP_TABLE["share.auto.offset.reset"].parse(value) == value
    else:
        with pytest.raises(ConfigError, match="must be either 'earliest', 'latest'"):
            GROUP_TABLE["share.auto.offset.reset"].parse(value)
