"""Common checks and failures of the requests about delegation tokens.

Source: ``KafkaApis.allowTokenRequests``, ``ControllerApis``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.security.delegation_token import Principal
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.forward import Forward

if TYPE_CHECKING:
    from kbroker.security.delegation_tokens import DelegationTokens

ANONYMOUS = "User:ANONYMOUS"


def allows_token_requests(ctx: ApiContext, request: RequestContext) -> bool:
    """Return whether the connection is authenticated, and not by a token: tokens must not create tokens.

    A console browser that has not signed in is not authenticated, even if its requests name a SASL listener.
    """
    if request.is_token_authenticated or request.principal == ANONYMOUS:
        return False
    return any(one.name == request.listener and (one.has_sasl or one.has_tls) for one in ctx.config.listeners)


def before_forwarding(ctx: ApiContext, body: Body, request: RequestContext) -> Forward | Body:
    """Check the connection of RenewDelegationToken and ExpireDelegationToken; return any refusal."""
    if allows_token_requests(ctx, request):
        return Forward()
    return {"ErrorCode": int(Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED), "ExpiryTimestampMs": -1}


def change_expiry(
    ctx: ApiContext, request: RequestContext, change: Callable[[DelegationTokens, Principal], int]
) -> Body:
    """Return the response of RenewDelegationToken or ExpireDelegationToken; ``change`` returns the new expiry."""
    found = before_forwarding(ctx, {}, request)
    if not isinstance(found, Forward):
        return found
    if ctx.delegation_tokens is None:
        return {"ErrorCode": int(Errors.DELEGATION_TOKEN_AUTH_DISABLED), "ExpiryTimestampMs": 0}
    try:
        expiry_ms = change(ctx.delegation_tokens, Principal.parse(request.principal))
    except KafkaError as error:
        return {"ErrorCode": int(error.error), "ExpiryTimestampMs": 0}
    return {"ErrorCode": 0, "ExpiryTimestampMs": expiry_ms}
