"""Throttled clients of a log: rows of `throttles` for a page, and their meaning in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kbroker.common.shown_names import shown_name
from kbroker.spark import formatting as jobs
from kbroker.spark.usage_views.throttles import KEYS
from kbroker.spark.whatif.quota_set import KEY_OF

ROWS = 200  # maximum number of rows in a page's table
NAMED = 3  # number of throttled clients for which a page gives advice
_ADVICE = {
    "Produce": "let it produce less, or raise its producer_byte_rate",
    "Fetch": "let it fetch less, or raise its consumer_byte_rate",
    "Request": "let it send fewer requests (larger linger.ms, fetch.min.bytes), or raise its request_percentage",
    "ControllerMutation": "let it create and delete fewer topics at a time, or raise its controller_mutation_rate",
    "ConnectionRate": "let it keep its connections, or raise the connection_creation_rate of its address",
}
_WHAT = {
    "Produce": "what it produced",
    "Fetch": "what it fetched",
    "Request": "the time that its requests took",
    "ControllerMutation": "how fast it changed topics",
    "ConnectionRate": "how fast it opened connections",
}


class Throttled(NamedTuple):
    """A quota and a client that it throttled: a row of `throttles`."""

    quota_type: str | None
    user: str | None
    client_id: str | None
    ip: str | None
    limit: float | None
    verdicts: int
    refused: int
    delay_ms: int
    longest_ms: int
    share: float

    @property
    def who(self) -> str:
        """Name of the throttled client."""
        if self.ip:
            return f"address {shown_name(self.ip)}"
        user = (self.user or "").removeprefix("User:")
        parts = [f"user {shown_name(user)}"] if user else []
        parts += [f"client id {shown_name(self.client_id)}"] if self.client_id else []
        return ", ".join(parts) or "a client without a name"

    @property
    def quota(self) -> str:
        """Name of the quota."""
        return self.quota_type or "unknown"

    @property
    def limit_text(self) -> str:
        return "-" if self.limit is None else limit_text(KEY_OF.get(self.quota_type or "", ""), self.limit)


class Throttles(NamedTuple):
    """All throttles of a log. `rows`: the first ROWS; the other fields: sums of all; `by_quota`: `delay_ms` by type."""

    rows: Sequence[Throttled]
    clients: int
    verdicts: int
    refused: int
    delay_ms: int
    by_quota: Mapping[str, int]


def gather_throttles(found: DataFrame) -> Throttles:
    """Reduce the rows of `throttles` to the size of a page."""
    found = found.cache()
    try:
        columns = (*KEYS, "limit", "verdicts", "refused", "delay_served_ms", "delay_max_ms", "share")
        rows = [Throttled(*(row[name] for name in columns)) for row in found.limit(ROWS).collect()]
        sums = found.groupBy("quota_type").agg(
            *(F.sum(name).alias(name) for name in ("verdicts", "refused", "delay_served_ms")), F.count("*").alias("n")
        )
        kinds = sorted(sums.collect(), key=lambda row: -row["delay_served_ms"])
    finally:
        found.unpersist()
    total = {name: sum(row[name] for row in kinds) for name in ("n", "verdicts", "refused", "delay_served_ms")}
    by_quota = {row["quota_type"] or "unknown": row["delay_served_ms"] for row in kinds}
    return Throttles(rows, total["n"], total["verdicts"], total["refused"], total["delay_served_ms"], by_quota)


def lead(found: Throttles) -> str:
    """Return a summary of the throttles, in a few sentences."""
    if not found.rows:
        return "No client was throttled: no request was delayed or refused by a quota."
    requests = ("request or connection was", "requests and connections were")
    if found.verdicts == found.refused:
        start = f"{_times(found.refused, *requests)} refused"
    else:
        refused = f", and {_times(found.refused, 'was', 'were')} refused" if found.refused else ""
        delayed = _times(found.verdicts - found.refused, *requests)
        start = f"{delayed} delayed by quotas, {jobs.duration(found.delay_ms)} in all{refused}"
    first = found.rows[0]
    if found.clients == 1:
        return f"{start}: all of {_by(first)}."
    kinds = [f"{quota} {jobs.share(ms / found.delay_ms)}" for quota, ms in found.by_quota.items() if ms]
    part = "Most" if first.share > 0.5 else "The largest part"
    sentences = [f"{start}. {jobs.count(found.clients)} clients or addresses were affected."]
    if found.delay_ms:
        sentences.append(f"{part} of the delay, {jobs.share(first.share)}, was that of {_by(first)}.")
        if len(kinds) > 1:
            sentences.append(f"By quota: {', '.join(kinds)}.")
    return " ".join(sentences)


def advice(found: Throttles, doubt: Callable[[Throttled], str | None] = lambda row: None) -> list[str]:
    """Return advice on the most throttled clients, one sentence each.

    Args: `doubt`: returns the reason why a client should not get more, or None.
    """
    return [f"{_first(row.who)}: {_do(row, doubt(row))}." for row in found.rows[:NAMED]]


def _by(row: Throttled) -> str:
    if row.quota_type is None:
        return f"{row.who}, by a quota that the log does not name"
    limit = "" if row.limit is None else f" of {row.limit_text}"
    return f"{row.who}, by its {row.quota_type} quota{limit} on {_WHAT.get(row.quota_type, 'its requests')}"


def _do(row: Throttled, doubt: str | None) -> str:
    times = f"{_times(row.verdicts, 'time', 'times')} over its {row.quota} quota"
    if row.quota_type is None:
        return (
            f"delayed {_times(row.verdicts, 'time', 'times')}; the log of Apache Kafka does not state by which quota: "
            "look for those of its user and client id with kafka-configs --describe"
        )
    longest = f", {jobs.duration(row.longest_ms)} at most" if row.longest_ms else ""
    if doubt is not None:
        return f"{times}{longest}; it {doubt}"
    return f"{times}{longest}; {_ADVICE.get(row.quota_type, 'see its quotas with kbroker quotas list')}"


def _first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _times(number: int, one: str, more: str) -> str:
    return f"{jobs.count(number)} {one if number == 1 else more}"


def limit_text(key: str, value: float | None) -> str:
    """Return a quota with its unit. Args: `key`: such as producer_byte_rate; unknown ones are numbers per second."""
    if value is None:
        return "no quota"
    if key.endswith("byte_rate"):
        return jobs.size(value) + "/s"
    return f"{value:,.10g} %" if key == "request_percentage" else f"{value:,.10g}/s"
