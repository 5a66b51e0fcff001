"""Verdict: a decision of a quota that delays or refuses, or of a shadow that would have done so."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from kbroker.common.request_log import QUOTA_TYPES


class Verdict(NamedTuple):
    """Decision of a quota about a request or a new connection.

    ``time_ms``: since 1970, by the clock of quotas. ``connection``: as in the request log, empty for a new one.
    ``api_key``: None without a request. ``user``, ``client_tag``: of the counter that judged, empty where its entity
    has no such part. ``level``: the matching one of the eight, 1 the most specific, 0 for none. ``observed``,
    ``limit``: in the quota's unit; ``window_ms``: the time that the rate covers, for a mutation quota the time in which
    its bucket fills. ``delay_asked_ms``: by the formula, before any cap. ``delay_served_ms``: the delay of the client
    that this verdict caused; of several verdicts on a request the one with the longest delay has all of it.
    ``refused``: error 89, or a connection that is closed. ``is_shadow``: nothing was delayed or refused; all other
    fields are those of an enforced quota of that value. Names longer than 128 bytes are cut.
    """

    time_ms: int
    principal: str
    client_id: str
    address: str
    connection: str
    api_key: int | None
    quota_type: str
    user: str
    client_tag: str
    level: int
    observed: float
    limit: float
    window_ms: int
    delay_asked_ms: int
    delay_served_ms: int
    refused: bool
    is_shadow: bool = False

    @classmethod
    def of(cls, row: Sequence[Any]) -> "Verdict":
        """Return the verdict in a row of the native ring, which has the quota type as a number."""
        return cls(*row)._replace(quota_type=QUOTA_TYPES[row[6]])
