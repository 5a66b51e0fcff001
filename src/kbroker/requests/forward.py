"""Decision of an API's module about a request in a member of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker.requests.context import Body


def _unchanged(response: Body) -> Body:
    return response


class Forward(NamedTuple):
    """A request goes to the controller.

    Args: ``body``: replaces that of the client, None if it is forwarded as it came; ``merge`` makes the response of
    the client from that of the controller.
    """

    body: Body | None = None
    merge: Callable[[Body], Body] = _unchanged
