"""Handler of an API whose requests a member of a cluster forwards to the active controller.

Source: ``KafkaApis.forwardToController``, ``RequestHandlerHelper.sendForwardedResponse``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common.errors import Errors, ProtocolError
from kbroker.common.loggers import get_logger
from kbroker.protocol import codec
from kbroker.requests.context import ApiContext, Body, RequestContext
from kbroker.requests.forward import Forward, client_of

if TYPE_CHECKING:
    from kbroker.member.forwarding import ForwardedResponse

logger = get_logger(__name__)

Prepare = Callable[[ApiContext, Body, RequestContext], Forward | Body]


def forward_unchanged(ctx: ApiContext, body: Body, request: RequestContext) -> Forward:
    """Forward the request unchanged."""
    return Forward()


class ForwardedApi:
    """Handler of an API that forwards requests; no thread waits for the responses.

    Args: ``prepare`` checks a request in this broker, and returns a `Forward` or the body of the response; ``failure``
    builds the response of an error.
    Threads: any.
    """

    def __init__(self, prepare: Prepare, failure: Callable[[Body, Errors, RequestContext], Body]) -> None:
        self._prepare = prepare
        self._failure = failure

    def __call__(self, ctx: ApiContext, body: Body, request: RequestContext) -> Body | None:
        """Return the response of ``prepare``; None for a request that is forwarded, and completed later."""
        found = self._prepare(ctx, body, request)
        if not isinstance(found, Forward):
            return found
        inbound, member = request.inbound, ctx.member
        assert inbound is not None
        assert member is not None
        key, version = request.api_key, request.api_version
        data = bytes(inbound.payload)
        if found.body is not None:
            header_bytes = len(data) - len(inbound.body)
            data = data[:header_bytes] + codec.encode_request(key, version, found.body)

        def respond(response: ForwardedResponse) -> None:
            error = response.error
            if error in (Errors.UNSUPPORTED_VERSION, Errors.NETWORK_EXCEPTION):
                request.close()
                return
            if error is Errors.NONE:
                try:
                    request.complete(found.merge(codec.decode_response_frame(key, version, response.data)[1]))
                    return
                except ProtocolError as malformed:
                    logger.error("the controller's response to API %d v%d is malformed: %s", key, version, malformed)
                    error = Errors.UNKNOWN_SERVER_ERROR
            request.complete(found.merge(self._failure(body if found.body is None else found.body, error, request)))

        member.forwarding.forward(data, client_of(request), respond)
        return None
