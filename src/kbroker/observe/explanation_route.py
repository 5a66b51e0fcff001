"""`GET /quotas/explain`: an explanation of one client's quotas over HTTP."""

from __future__ import annotations

from typing import Any

from kbroker.common.quotas import CLIENT_KEYS, IP_KEYS
from kbroker.observe.http_routes import HttpError, only
from kbroker.quota.explanation import QuotaExplainer, UnknownConnectionError

COMPARE = "compare."
MOST_CHARACTERS = 32_767  # maximum length of a client id in Kafka's protocol


def explanation_of_query(explainer: QuotaExplainer, query: dict[str, str]) -> dict[str, Any]:
    """Return the explanation for a query: user, client-id, ip; or connection; and compare.KEY, other limits by key.

    Raises: HttpError 400.
    """
    compare = {f"{COMPARE}{key}": key for key in (*CLIENT_KEYS, *IP_KEYS)}
    only(query, "user", "client-id", "ip", "connection", *compare)
    connection = query.get("connection")
    if connection is not None and not query.keys().isdisjoint(("user", "client-id", "ip")):
        raise HttpError(400, "expected connection alone, got it with user, client-id or ip")
    if any(len(value) > MOST_CHARACTERS for value in query.values()):
        raise HttpError(400, f"expected at most {MOST_CHARACTERS} characters of a name, got more")
    limits = {compare[name]: _limit(name, text) for name, text in query.items() if name in compare}
    try:
        return explainer.explain(
            query.get("user") or "ANONYMOUS",
            query.get("client-id", ""),
            query.get("ip"),
            connection=connection,
            compare=limits,
        )
    except (ValueError, UnknownConnectionError) as error:
        raise HttpError(400, str(error)) from None


def _limit(name: str, text: str) -> float:
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise HttpError(400, f"expected {name} to be a number above 0, got {text[:40]!r}")
    return limit
