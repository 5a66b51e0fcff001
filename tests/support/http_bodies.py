"""HTTP servers of tests: bodies of requests, and scripted servers."""

import contextlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from kbroker.common.http_server import HttpHandler, HttpServer


def body_of(handler: BaseHTTPRequestHandler) -> bytes:
    """Read the body of a request, with a length or in chunks."""
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    found = b""
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        found += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return found


@contextlib.contextmanager
def served(handler: type[HttpHandler], script: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Serve a script over HTTP, with the server's URL among its entries."""
    server = HttpServer("127.0.0.1", 0, handler, script, name="scripted")
    server.start()
    script["url"] = server.url
    try:
        yield script
    finally:
        server.stop()
