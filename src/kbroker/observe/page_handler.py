"""Base class of the HTTP handlers that serve mounted pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import SplitResult, unquote, urlsplit

from kbroker.common.http_messages import METHODS, PLAIN, READING, HttpRequest, only_these
from kbroker.common.http_server import HttpHandler
from kbroker.observe.mounted_pages import MountedPages

MAX_WITH_PAGES = 128  # maximum number of connections: a browser opens several for each page
MAX_BODY_BYTES = 1 << 16  # maximum size of a form
MAX_SKIPPED_BYTES = 8 << 20  # maximum number of bytes read of a refused body
MAX_CHUNK_LINE = 1024  # maximum number of bytes read of the line before a chunk
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
        length = self.body_bytes
        if mounted is None:
            self.refuse_method(READING)
        elif length is None:
            self.skip_body()
            self.send_sentence(411, "expected a Content-Length")
        elif length > MAX_BODY_BYTES:
            self.skip_body()
            self.send_sentence(413, f"expected a body of at most {MAX_BODY_BYTES} bytes, got one of {length}")
        else:
            body = self.rfile.read(length)
            if len(body) == length:  # otherwise the client has closed, or the deadline has passed
                self.request_is_read()
                self.show_pages(mounted, target, body)

    @property
    def body_bytes(self) -> int | None:
        """Size of the request's body in bytes; None without a valid Content-Length."""
        length = self.headers.get("Content-Length", "")
        return int(length) if length.isascii() and length.isdigit() and len(length) < 10 else None

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
        self.skip_body()
        sentence, allow = only_these(methods)
        self.send_sentence(405, sentence, (allow,))

    def skip_body(self) -> None:
        """Read a refused body: a connection that is closed with unread bytes is reset, and its response is lost."""
        if self.headers.get("Transfer-Encoding", "").strip().lower() != "chunked":
            self._skip(min(self.body_bytes or 0, MAX_SKIPPED_BYTES))
            return
        left = MAX_SKIPPED_BYTES
        while left > 0 and (size_bytes := _chunk_bytes(self.rfile.readline(MAX_CHUNK_LINE))):
            self._skip(min(size_bytes + 2, left))  # with the end of its line
            left -= size_bytes

    def _skip(self, left: int) -> None:
        while left > 0 and (part := self.rfile.read1(min(left, MAX_BODY_BYTES))):
            left -= len(part)

    def send_sentence(self, status: int, sentence: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.send_page(status, f"{sentence}\n".encode(), PLAIN, (*PRIVATE, *headers))


def _chunk_bytes(line: bytes) -> int:
    """Return the size of a chunk from the line before it; 0 for the last chunk, and for a malformed line."""
    found = re.match(rb"([0-9a-fA-F]{1,8})[ \t]*[;\r\n]", line)
    return 0 if found is None else int(found[1], 16)
