"""Requests that a member of a cluster forwards: the decision of an API's module, and the sender."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker.member.client import Client
from kbroker.requests.context import Body, RequestContext


def _unchanged(response: Body) -> Body:
    return response


class Forward(NamedTuple):
    """Request to forward to the controller.

    Args: ``body``: replaces the body of the client, None to forward that unchanged; ``merge`` makes the client's
    response from the controller's.
    """

    body: Body | None = None
    merge: Callable[[Body], Body] = _unchanged


def client_of(request: RequestContext) -> Client:
    """Return the sender of a request, in the form for the controller."""
    return Client(request.principal, request.client_host, request.is_token_authenticated)
