"""Base class of the HTTP handlers that serve mounted pages."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import SplitResult, unquote, urlsplit

from kbroker.common.http_messages import METHODS, PLAIN, READING, HttpRequest, only_these
from kbroker.common.http_server import HttpHandler
from kbroker.observe.mounted_pages import MountedPages

MAX_WITH_PAGES = 128  # maximum number of connections: a browser opens several for each page
MAX_BODY_BYTES = 1 << 16  # of a form
PRIVATE = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))


class PageHandler(HttpHandler):
    """Handler of forms and of the pages in ``self.server.served.mounted``, a sequence of MountedPages."""

    def do_POST(self) -> None:
        try:
            target = urlsplit(self.path)
        except ValueError as error:
            self.send_sentence(400, f"no such target: {error}")
            return
        mounted = self.mounted_pages(target)
        length = self.headers.get("Content-Length", "")
        if mounted is None:
            self.refuse_method(READING)
        elif not (length.isascii() and length.isdigit() and len(length) < 10):
            self.send_sentence(411, "expected a Content-Length")
        elif int(length) > MAX_BODY_BYTES:
            self.send_sentence(413, f"expected a body of at most {MAX_BODY_BYTES} bytes, got one of {length}")
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):  # otherwise the client has closed, or the deadline has passed
                self.request_is_read()
                self.show_pages(mounted, target, body)

    def mounted_pages(self, target: SplitResult) -> MountedPages | None:
        mounted: Sequence[MountedPages] = self.server.served.mounted
        return next((pages for pages in mounted if pages.has(target.path)), None)

    def show_pages(self, mounted: MountedPages, target: SplitResult, body: bytes) -> None:
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            headers.setdefault(name.lower(), value)
        path = unquote(target.path)
        response = mounted.respond(HttpRequest(self.command, path, target.query, headers, self.peer, body))
        self.send_page(response.status, response.body, response.content_type, response.headers)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send a sentence for a request that the base class rejects: malformed, too long, another method."""
        self.close_connection = True
        if code != 501:
            self.send_sentence(code, message or HTTPStatus(code).phrase)
            return
        try:
            mounted = self.mounted_pages(urlsplit(self.path))
        except ValueError:
            mounted = None
        self.refuse_method(READING if mounted is None else METHODS)

    def refuse_method(self, methods: Sequence[str]) -> None:
        sentence, allow = only_these(methods)
        self.send_sentence(405, sentence, (allow,))

    def send_sentence(self, status: int, sentence: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.send_page(status, f"{sentence}\n".encode(), PLAIN, (*PRIVATE, *headers))
