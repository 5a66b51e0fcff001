"""RenewDelegationToken: extends a token's validity, up to its maximum lifetime.

Source: ``KafkaApis.handleRenewTokenRequest``, ``DelegationTokenControlManager.renewDelegationToken``.
"""

from __future__ import annotations

from kbroker.apis.token_requests import before_forwarding, change_expiry
from kbroker.requests.context import ApiContext, Body, RequestContext

__all__ = ["before_forwarding", "handle"]


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Renew a token that the client owns or may renew."""
    return change_expiry(
        ctx, request, lambda tokens, who: tokens.renew(bytes(body["Hmac"]), who, body["RenewPeriodMs"])
    )
