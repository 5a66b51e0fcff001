"""Requests of a browser, straight to the console's pages."""

from __future__ import annotations

from urllib.parse import unquote, urlencode

from kbroker.common.http_messages import HttpRequest, HttpResponse
from kbroker.console.app import Console

HOST = "127.0.0.1:9400"


def ask(
    pages: Console, target: str, address: str = "127.0.0.1", method: str = "GET", body: bytes = b"", **headers: str
) -> HttpResponse:
    """Ask for a page below /console as a browser does; ``sec_fetch_site`` is the header Sec-Fetch-Site."""
    path, _, query = target.partition("?")
    found = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return pages.respond(HttpRequest(method, f"/console/{unquote(path)}", query, found, address, body))


def post(pages: Console, path: str, fields: dict[str, str], address: str = "127.0.0.1", **headers: str) -> HttpResponse:
    """Send a form as a browser does."""
    headers = {"origin": f"http://{HOST}", "content_type": "application/x-www-form-urlencoded", **headers}
    return ask(pages, path, address, "POST", urlencode(fields).encode(), **headers)
