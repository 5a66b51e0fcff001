"""Metrics of the authorizer. Kafka has rates a minute of the same; here they are counters.

Source: ``StandardAuthorizer.AuthorizerMetrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbroker.metrics.families import Family

Series = Iterable[tuple[tuple[str, ...], float]]

if TYPE_CHECKING:  # loaded where there is one
    from kbroker.security.authorizer.authorizer import Authorizer

GROUP = "kbroker:authorizer"


def families(authorizer: Callable[[], Authorizer | None]) -> Iterable[Family]:
    """All of them; without an authorizer there are no rules and no decisions."""

    def rules() -> Series:
        found = authorizer()
        return [((), 0 if found is None else len(found))]

    def decisions() -> Series:
        found = authorizer()
        allowed, denied = (0, 0) if found is None else found.rules.decisions
        return [(("allowed",), allowed), (("denied",), denied)]

    yield Family(GROUP, "acls", "gauge", (), "access control lists", rules)
    text = "questions whether a client may do something, by the decision"
    yield Family(GROUP, "decisions-total", "counter", ("decision",), text, decisions)
