"""JSON routes of the HTTP port: each path with the function that returns its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Called with the parameters of the query, each at most once; returns a JSON value, or raises HttpError.
Route = Callable[[dict[str, str]], Any]


class HttpError(Exception):
    """Refusal of a request by a route: the status (400, 404 ...), and a sentence for the client."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class RouteTable:
    """Routes by their path. Threads: any; a route is served as soon as it is added."""

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}

    def add(self, path: str, route: Route) -> None:
        """Serve ``path``, such as ``/xray``, on its own thread for each request, after the check of ``http_access``.

        Raises: ValueError for a path that is not plain, or has a route already.
        """
        if not path.startswith("/") or path.endswith("/") or "?" in path:
            raise ValueError(f"expected a path such as /xray, got {path!r}")
        if path in self._routes:
            raise ValueError(f"{path} has a route")
        self._routes = {**self._routes, path: route}

    def find(self, path: str) -> Route | None:
        """Return the route of a path, None without one."""
        return self._routes.get(path)

    @property
    def paths(self) -> list[str]:
        """All paths."""
        return sorted(self._routes)


def limit_of(query: dict[str, str], name: str, default: int, most: int) -> int:
    """Return a number of the query, from 1 to ``most``. Raises: HttpError 400."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise HttpError(400, f"expected {name} from 1 to {most}, got {text[:40]!r}")
    return int(text)


def only(query: dict[str, str], *names: str) -> None:
    """Reject parameters other than these. Raises: HttpError 400."""
    for name in query:
        if name not in names:
            known = f"known are {', '.join(names)}" if names else "there are none"
            raise HttpError(400, f"no such parameter: {name[:40]!r}; {known}")
