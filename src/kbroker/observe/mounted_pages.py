"""Pages of another package on the HTTP port, below one path, loaded by the first request for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from kbroker.common.http_messages import HttpRequest, HttpResponse
from kbroker.common.loggers import get_logger

logger = get_logger(__name__)


class PageServer(Protocol):
    """Handler of the requests below a path, from many threads at once, with its own access check."""

    def respond(self, request: HttpRequest) -> HttpResponse: ...
    def close(self) -> None: ...


class _ClosedError(Exception):
    """Request for a page while the broker stops."""


class MountedPages:
    """Pages below ``path``, such as /console. ``load`` creates their server at the first request. Threads: any."""

    def __init__(self, path: str, load: Callable[[], PageServer]) -> None:
        self.path = path
        self._load = load
        self._lock = threading.Lock()
        self._server: PageServer | None = None
        self._is_closed = False

    def has(self, path: str) -> bool:
        """Return whether a path is below this one."""
        return path == self.path or path.startswith(f"{self.path}/")

    def respond(self, request: HttpRequest) -> HttpResponse:
        """Serve a request; 503 with the reason if its pages cannot be loaded."""
        try:
            server = self._loaded()
        except _ClosedError:
            return HttpResponse(503, b"The broker stops.\n")
        except ImportError as error:
            text = f"{self.path} needs {error.name}, which is not installed: pip install 'kbroker[{self.path[1:]}]'\n"
            return HttpResponse(503, text.encode())
        except Exception:
            logger.exception("%s cannot be loaded", self.path)
            return HttpResponse(503, f"{self.path} cannot be loaded; the log says why\n".encode())
        return server.respond(request)

    def _loaded(self) -> PageServer:
        server = self._server
        if server is None:
            with self._lock:
                if self._is_closed:
                    raise _ClosedError
                if self._server is None:
                    self._server = self._load()
                server = self._server
        return server

    def close(self) -> None:
        """Stop serving. Idempotent."""
        with self._lock:
            self._is_closed = True
            server, self._server = self._server, None
        if server is not None:
            server.close()
