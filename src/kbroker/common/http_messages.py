"""HTTP request and response as values, passed between an HTTP port and the pages that other packages mount on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl

PLAIN = "text/plain; charset=utf-8"
MAX_PARAMETERS = 64
READING = ("GET", "HEAD")
METHODS = (*READING, "POST")  # methods that pages may support


class HttpRequest(NamedTuple):
    """A request.

    ``method``: one of METHODS; ``path``: decoded, without the query; ``query``: as sent; ``headers``: by name in lower
    case, the first of each; ``address``: the client's.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    address: str
    body: bytes = b""


class HttpResponse(NamedTuple):
    """A response. ``headers``: all except Content-Type and Content-Length."""

    status: int
    body: bytes
    content_type: str = PLAIN
    headers: Sequence[tuple[str, str]] = ()


def only_these(methods: Sequence[str]) -> tuple[str, tuple[str, str]]:
    """Return the response to an unsupported method: a sentence and the header Allow."""
    return f"only {', '.join(methods[:-1])} and {methods[-1]} are served here", ("Allow", ", ".join(methods))


class QueryError(ValueError):
    """A query, or the fields of a form, that cannot be parsed; its text is the reason."""


def parameters(query: str) -> dict[str, str]:
    """Return the parameters of a query, or the fields of a form. Raises: QueryError."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise QueryError(f"the parameters cannot be read: {error}") from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise QueryError("duplicate parameter: give each once")
    return found


#: Serves requests; many threads call it at once.
Pages = Callable[[HttpRequest], HttpResponse]
