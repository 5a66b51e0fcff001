"""SaslAuthenticate when no authentication is in progress.

Source: ``KafkaApis.handleSaslAuthenticateRequest``.
"""

from __future__ import annotations

from kbroker.common.errors import Errors
from kbroker.requests.context import ApiContext, Body, RequestContext

KEY = 36


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Refuse the request."""
    response = failure(body, Errors.ILLEGAL_SASL_STATE, request)
    response["ErrorMessage"] = "SaslAuthenticate request received after successful authentication"
    return response


def failure(body: Body, error: Errors, request: RequestContext) -> Body:
    """Return a response with the error, without a token."""
    return {"ErrorCode": int(error), "ErrorMessage": None, "AuthBytes": b""}
