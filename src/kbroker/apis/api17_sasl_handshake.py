"""SaslHandshake after authentication, or on a listener without it.

Before authentication, the listener's authenticator handles the request.

Source: ``KafkaApis.handleSaslHandshakeRequest``.
"""

from __future__ import annotations

from kbroker.common.errors import Errors, KafkaError
from kbroker.requests.context import ApiContext, Body, RequestContext

KEY = 17


def handle(ctx: ApiContext, body: Body, request: RequestContext) -> Body:
    """Refuse the handshake."""
    raise KafkaError(Errors.ILLEGAL_SASL_STATE)
