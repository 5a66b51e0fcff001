"""Limits of quotas as text."""

import json
import math

from kbroker.common.quota_limits import json_number, number_text, parse_limit


def test_numbers_are_shown_as_short_as_they_can_be() -> None:
    """Whole numbers have no point, others have all their digits, and infinity is "inf"."""
    assert [number_text(n) for n in (1048576.0, 0.1, 12.5, 2.0**63, float("inf"))] == [
        "1048576", "0.1", "12.5", "9.223372036854776e+18", "inf",
    ]  # fmt: skip


def test_an_infinite_limit_is_valid_json() -> None:
    """JSON has no infinite number: `quotas list --json` printed a document that other parsers refuse."""
    written = json.dumps(json_number(math.inf), allow_nan=False)
    assert written == '"Infinity"'
    assert parse_limit("request_percentage", json.loads(written)) == math.inf
