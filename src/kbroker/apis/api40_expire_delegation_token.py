"""ExpireDelegationToken: a token ends earlier, or now.

Source: ``KafkaApis.handleExpireTokenRequest``, ``DelegationTokenControlManager.expireDelegationToken``.
"""

from __future__ import annotations

from kbroker.apis.token_requests import before_forwarding, change_expiry
from kbroker.requests.context import ApiContext, Body, RequestContext

__all__ = ["before_forwarding", "handle"]


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """End a token that the client owns or may renew."""
    return change_expiry(
        ctx, request, lambda tokens, who: tokens.expire(bytes(body["Hmac"]), who, body["ExpiryTimePeriodMs"])
    )
