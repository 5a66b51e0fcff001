"""SaslHandshake after authentication, or without it; before, the listener's authenticator handles it.

Source: ``KafkaApis.handleSaslHandshakeRequest``.
"""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.requests.context import ApiContext, Body, RequestContext

KEY = 17


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Refuse the handshake."""
    return failure(body, Errors.ILLEGAL_SASL_STATE, request)


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return the error without mechanisms."""
    return {"ErrorCode": int(error), "Mechanisms": []}
