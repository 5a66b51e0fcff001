"""Layout of an explanation: 80 columns with any names, the chart, and the text of each part."""

from typing import Any

import pytest

from kbroker.cli.quota_explanation_view import amount_text, chart, show_explanation
from kbroker.client.quota_resolution import explanation_of, resolve_quotas
from kbroker.common.printable import columns_of
from kbroker.common.quotas import QuotaEntity

NOW_MS = 1_700_000_100_000
KEY = "producer_byte_rate"


def counter(**more: Any) -> dict[str, Any]:
    samples = [(12_100, 5000.0), (10_500, 1000.0), (5_900, 8000.0), (200, 4000.0)]
    return {
        "observed": 1300.0,
        "window_ms": 10_500,
        "limit": 1000.0,
        "left": -300.0,
        "tokens": None,
        "most_tokens": None,
        "delay_ms": 3100,
        "asked_ms": 3100,
        "sample_ms": 1000,
        "sample_count": 11,
        "records": 40,
        "samples": [
            {"start_ms": NOW_MS - ago_ms, "last_ms": NOW_MS - ago_ms, "value": value, "records": 10}
            for ago_ms, value in samples
        ],
        **more,
    }


def found(user: str = "alice", client_id: str = "app", **more: Any) -> dict[str, Any]:
    """Return an explanation in the form of a broker's."""
    quotas = {
        QuotaEntity.of({"user": user}): {KEY: 1000.0},
        QuotaEntity.of({"user": None}): {KEY: 10.0},
        QuotaEntity.of({"client-id": client_id}): {KEY: 5.0},
    }
    base = explanation_of(resolve_quotas(quotas, user, client_id), user, client_id, None, "-")
    for quota in base["quotas"]:
        quota["is_enabled"] = quota["limit"] is not None
        if quota["quota"] == KEY:
            quota["counter"] = counter()
    verdict = {
        "time_ms": NOW_MS, "quota": KEY, "is_shadow": False, "is_own": False, "client_id": client_id, "refused": False,
        "observed": 1300.0, "limit": 1000.0, "delay_asked_ms": 3100, "delay_served_ms": 3100,
    }  # fmt: skip
    return {
        **base,
        "missing": [],
        "source": "broker",
        "time_ms": NOW_MS,
        "is_known": True,
        "connections": 7,
        "waiting": [{"connection": f"{user}-{n}", "left_ms": 3100 - n, "quota": KEY} for n in range(7)],
        "client_ids": [client_id, "other"],
        "verdicts": [verdict] * 9,
        "verdicts_truncated": False,
        **more,
    }


def shown(capsys: pytest.CaptureFixture[str], explanation: dict[str, Any], compared_with: str | None = None) -> str:
    show_explanation(explanation, compared_with)
    return capsys.readouterr().out


def test_the_whole_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The text describes a client that is over its quota."""
    lines = shown(capsys, found()).splitlines()
    assert lines[:3] == [
        "user alice, client-id app",
        "7 open connections, 7 throttled now",
        "  waits 3.1 s more: alice-0 (producer_byte_rate)",
    ]
    assert lines[7:21] == [
        "  and 2 more",
        "",
        "producer_byte_rate  1000 B/s",
        "  set for     level 3: user alice",
        "  counted for user alice, all its clients",
        "  rate now    1.3 KiB/s over 10.5 s, 130 % of the limit",
        "  last 12.0 s ·▁····█····▄  full bar 7.8 KiB in 1.0 s",
        "  next request waits 3.1 s",
        "  lost        6 user <default> 10 B/s: level 3 comes first",
        "  lost        7 client-id app 5 B/s: level 3 comes first",
        "  not set     levels 1, 2, 4, 5, 8",
        "",
        "no quota applies: consumer_byte_rate, controller_mutation_rate,",
        "  request_percentage",
    ]
    assert lines[22] == "LAST 8 VERDICTS (UTC)"
    assert lines[23] == "  22:15:00.000  producer_byte_rate  1.3 KiB/s of 1000 B/s  delay 3.1 s (app)"


@pytest.mark.parametrize("name", ["x" * 32_767, "\x1b[2J\u202e" * 20, "語" * 300, "a\nb\r\tc"])
def test_no_name_is_wider_than_the_terminal_or_acts_on_it(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Each line has at most 80 columns of printable characters."""
    explanation = found(name, name)
    text = shown(capsys, explanation, name) + shown(capsys, {**explanation, "is_known": False, "connections": 0})
    assert max(map(columns_of, text.split("\n"))) <= 80
    assert all(line.isprintable() for line in text.split("\n"))


def test_the_chart_has_the_latest_sample_at_the_right() -> None:
    """Each sample has a bar, the highest bar is full, and samples older than the window are left out."""
    assert chart(counter(), NOW_MS) == ("·▁····█····▄", 8000.0)
    assert chart(counter(samples=[]), NOW_MS) == ("·" * 12, 0.0)
    bars, _ = chart(counter(sample_count=100_000), NOW_MS)
    assert len(bars) == 40


def test_a_bucket_a_shadow_and_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    """The text has a bucket's tokens, a shadow's delay, and a comparison with its incomplete traffic."""
    explanation = found()
    quota = next(one for one in explanation["quotas"] if one["quota"] == KEY)
    quota["shadow"] = {**quota, "limit": 500.0, "counter": counter(limit=500.0, delay_ms=16_000)}
    at = {"time_ms": NOW_MS, "observed": 1300.0, "delay_ms": 0, "is_complete": True}
    quota["compare"] = {
        "limit": 2000.0, "delayed": 2, "longest_delay_ms": 65_000, "is_complete": False, "now": at, "samples": [at] * 4,
        "level": 1, "entity": {"user": "alice", "client-id": "app"},
        "counted_for": {"user": "alice", "client-id": "app"}, "is_same_counter": False,
    }  # fmt: skip
    bucket = next(one for one in explanation["quotas"] if one["quota"] == "controller_mutation_rate")
    bucket["counter"] = counter(tokens=-3.5, most_tokens=22.0, limit=2.0, delay_ms=1750, asked_ms=1750)
    text = shown(capsys, explanation, "wanted.yaml")
    for line in (
        "  shadow      500 B/s, level 3: user alice",
        "              now 1.3 KiB/s, would delay 16.0 s",
        "  wanted.yaml 2000 B/s, level 1: user alice, client-id app",
        "              would have delayed at 2 of 4 samples, 1 min 5 s at most",
        "              now it would not delay",
        "              earlier traffic is unknown: the first delays may be longer",
        "  tokens      -3.5 of 22",
    ):
        assert line in text, line


def test_a_shadow_alone_has_the_chart(capsys: pytest.CaptureFixture[str]) -> None:
    """Without an enforced quota the shadow's counter has the chart."""
    explanation = found()
    quota = next(one for one in explanation["quotas"] if one["quota"] == KEY)
    quota["shadow"] = {**quota, "limit": 500.0, "counter": counter(limit=500.0)}
    assert shown(capsys, explanation).count("full bar") == 1
    quota["counter"] = None
    text = shown(capsys, explanation)
    assert text.index("now 1.3 KiB/s") < text.index("full bar ")


def test_a_verdict_says_what_was_served(capsys: pytest.CaptureFixture[str]) -> None:
    """A delay by request time is capped; of several delays of a request only the longest is served."""
    key, verdict = "request_percentage", found()["verdicts"][0]
    capped = {**verdict, "quota": key, "delay_asked_ms": 535_000, "delay_served_ms": 1000}
    shorter = {**capped, "delay_served_ms": 0, "is_shadow": True}
    text = shown(capsys, found(verdicts=[capped, shorter]))
    assert "delay 1.0 s (app)" in text
    assert "shorter shadow (app)" in text
    assert "8 min" not in text


def test_a_delay_that_wraps_around_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """As in Kafka, a delay is an int32: an overflow may be negative, which delays nothing."""
    explanation = found()
    quota = next(one for one in explanation["quotas"] if one["quota"] == KEY)
    quota["counter"] = counter(delay_ms=-1, asked_ms=2**63 - 1)
    quota["shadow"] = {**quota, "counter": counter(delay_ms=-1, asked_ms=2**63 - 1)}
    text = shown(capsys, explanation)
    assert "next request does not wait" in text
    assert "would not delay" in text
    assert "-1 ms" not in text


def test_amounts() -> None:
    assert amount_text("request_percentage", 50.0) == "500 ms of one thread"
    assert amount_text("connection_creation_rate", 7.9) == "7"
    assert amount_text("consumer_byte_rate", 2048.0) == "2.0 KiB"
