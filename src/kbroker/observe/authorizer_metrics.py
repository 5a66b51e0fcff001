"""Metrics of the authorizer: its ACLs, and counters of decisions, for which Kafka has rates per minute.

Source: ``StandardAuthorizer.AuthorizerMetrics``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.observe.metric_table import Row, Series

if TYPE_CHECKING:
    from kbroker.requests.context import ApiContext

GROUP = "kbroker:authorizer"


def _acls(ctx: ApiContext) -> float:
    authorizer = ctx.auth.authorizer
    return 0 if authorizer is None else len(authorizer)


def _decisions(ctx: ApiContext) -> Series:
    authorizer = ctx.auth.authorizer
    allowed, denied = (0, 0) if authorizer is None else authorizer.rules.decisions
    return [(("allowed",), allowed), (("denied",), denied)]


ROWS: tuple[Row[ApiContext], ...] = (
    Row(GROUP, "acls", "access control lists", _acls),
    Row(GROUP, "decisions-total", "authorization decisions, by outcome", _decisions,
        ("decision",), "counter"),
)  # fmt: skip
