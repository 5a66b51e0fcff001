"""A request and its response as values: what an HTTP port hands to the pages that other packages have mounted there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kbroker.common.light_typing import NamedTuple

PLAIN = "text/plain; charset=utf-8"


class HttpRequest(NamedTuple):
    """``path``: decoded, without the query; ``query``: as sent; ``headers``: by name in lower case, the first of each;
    ``address``: of the client.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    address: str
    body: bytes = b""


class HttpResponse(NamedTuple):
    """``headers``: those beside Content-Type and Content-Length."""

    status: int
    body: bytes
    content_type: str = PLAIN
    headers: Sequence[tuple[str, str]] = ()


#: Serves requests; called by many threads at once.
Pages = Callable[[HttpRequest], HttpResponse]
