"""Limits of quotas as text."""

from kbroker.common.quota_limits import number_text


def test_numbers_are_shown_as_short_as_they_can_be() -> None:
    """Whole numbers have no point, others have all their digits, and infinity is "inf"."""
    assert [number_text(n) for n in (1048576.0, 0.1, 12.5, 2.0**63, float("inf"))] == [
        "1048576", "0.1", "12.5", "9.223372036854776e+18", "inf",
    ]  # fmt: skip
