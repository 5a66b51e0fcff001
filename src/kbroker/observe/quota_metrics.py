"""Metrics of client quotas and their shadows: rates and delays by client, counts of decisions.

The registry has the series of clients, registered at the first decision about a client; this module has
their help texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbroker.metrics.families import Family
from kbroker.observe.metric_table import Series

if TYPE_CHECKING:
    from kbroker.quota._client_quotas import ClientQuotaManagers

CLIENT = ("user", "client-id")
#: Group, name, labels and help text.
_OF_CLIENTS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("Produce", "byte-rate", CLIENT, "bytes per second that are charged to the quota"),
    ("Fetch", "byte-rate", CLIENT, "bytes per second that are charged to the quota"),
    ("Request", "request-time", CLIENT, "percent of one thread that is charged to the quota"),
    ("ControllerMutation", "mutation-rate", CLIENT, "partitions created and deleted per second"),
    ("ControllerMutation", "tokens", CLIENT, "mutations left in the bucket; below 0 the quota refuses new ones"),
    ("Request", "exempt-request-time", (), "percent of one thread of requests that are never throttled"),
)
#: Group after ``kbroker:``, name and help text.
_OF_SHADOWS = (
    ("shadow-produce", "byte-rate", "bytes per second that are charged to the shadow quota"),
    ("shadow-fetch", "byte-rate", "bytes per second that are charged to the shadow quota"),
    ("shadow-request", "request-time", "percent of one thread that is charged to the shadow quota"),
    ("shadow-controller-mutation", "mutation-rate", "partitions per second that are charged to the shadow quota"),
    ("shadow-controller-mutation", "tokens", "mutations left in the shadow's bucket; below 0 it would refuse new ones"),
)


def families(quotas: ClientQuotaManagers) -> Iterable[Family]:
    """Yield the families of all quotas."""
    for group, name, labels, text in _OF_CLIENTS:
        yield Family(group, name, "gauge", labels, text)
    for group in ("Produce", "Fetch", "Request", "ControllerMutation"):
        yield _delay(group, "average delay in milliseconds, NaN without any")
        yield Family(group, "queue-size", "gauge", (), "muted connections")
    for group, name, text in _OF_SHADOWS:
        yield Family(f"kbroker:{group}", name, "gauge", CLIENT, text)
    for group in dict.fromkeys(group for group, _, _ in _OF_SHADOWS):
        text = "average delay in milliseconds that an enforced quota would have caused, NaN without any"
        yield _delay(f"kbroker:{group}", text)
    yield _verdicts(
        quotas, "kbroker:quota", False, "decisions of quotas that delayed or refused a request or a new connection"
    )
    yield _verdicts(
        quotas, "kbroker:shadow", True,
        "decisions of shadow quotas: requests and connections that an enforced quota would have delayed or refused",
    )  # fmt: skip


def _delay(group: str, text: str) -> Family:
    return Family(group, "throttle-time", "gauge", CLIENT, text, combine="max")


def _verdicts(quotas: ClientQuotaManagers, group: str, shadow: bool, text: str) -> Family:
    def totals() -> Series:
        for kind, counts in quotas.verdict_totals(shadow).items():
            for outcome, count in zip(("delayed", "refused"), counts, strict=True):
                yield (kind, outcome), count

    return Family(group, "verdicts-total", "counter", ("type", "outcome"), text, totals)
