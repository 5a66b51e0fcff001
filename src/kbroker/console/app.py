"""The console of one broker: access checks, routing of pages, and the headers of responses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.broker import Broker
from kbroker.common.http_messages import METHODS, PLAIN, HttpRequest, HttpResponse, only_these
from kbroker.common.loggers import get_logger
from kbroker.common.printable import printable
from kbroker.console.history import History, broker_totals
from kbroker.console.rendering import Renderer
from kbroker.console.requests import PageError, Query, sentence
from kbroker.console.sign_in import SESSION_MS, FormSecret, Sessions, cookie_name, cookie_of
from kbroker.console.site import ROOT, Download, Json, Site, View
from kbroker.console.views import clients, groups, overview, quotas, slow_requests, throttles, topics
from kbroker.observe.http_access import HttpAccess

logger = get_logger(__name__)

ASSETS = Path(__file__).with_name("assets")
HTML = "text/html; charset=utf-8"
AT_ONCE = 4  # pages rendered at the same time: each may use megabytes
WAIT_S = 5.0  # time that a further page waits for its turn
KEPT_MS = 1000  # time for which a rendered page is served again
MAX_KEPT = 64
MAX_KEPT_BYTES = 1 << 20
# refresh of open pages: all together at most ten times a second
SHORTEST_MS = 2000
LONGEST_MS = 30_000
EACH_MS = 100  # added to the interval of all pages for each viewer
SEEN_MS = 60_000
MAX_VIEWERS = 2000
MAX_NAME = 32

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURE = (
    ("Content-Security-Policy", POLICY),
    ("X-Frame-Options", "DENY"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
NOT_STORED = ("Cache-Control", "no-store")
KINDS = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

Result = View | Download | Json
Page = Callable[[Site, Query], Result]

MENU = (
    ("", "Overview"),
    ("topics", "Topics"),
    ("groups", "Groups"),
    ("clients", "Clients"),
    ("throughput", "Throughput"),
    ("throttles", "Throttles"),
    ("quotas", "Quotas"),
    ("requests", "Slow requests"),
    ("xray", "X-ray"),
)
PAGES: Mapping[str, Page] = {
    "": overview.overview,
    "topics": topics.topics,
    "topic": topics.topic,
    "messages": topics.messages,
    "message": topics.message,
    "value": topics.value,
    "groups": groups.groups,
    "group": groups.group,
    "clients": clients.clients,
    "client": clients.client,
    "throughput": overview.throughput,
    "rates": overview.rates,
    "alive": overview.alive,
    "throttles": throttles.throttles,
    "quotas": quotas.quotas,
    "quota": quotas.quota,
    "explain": quotas.explain,
    "requests": slow_requests.slow_requests,
    "xray": overview.xray,
}
#: Menu entry of each page.
BELOW = {
    **dict.fromkeys(("topic", "messages", "message"), "topics"),
    "group": "groups",
    "client": "clients",
    **dict.fromkeys(("quota", "quota/preview", "quota/apply", "explain"), "quotas"),
}


class Viewers:
    """Number of pages that were refreshed within the last minute. Threads: any."""

    def __init__(self, clock: BaseClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}  # by the page's own name, the most recent last

    def again_ms(self, viewer: str) -> int:
        """Return the refresh interval of a page. Args: ``viewer``: empty for a page that is just being loaded."""
        now_ms = self._clock.now_ms()
        with self._lock:
            if viewer:
                self._seen.pop(viewer[:MAX_NAME], None)
                self._seen[viewer[:MAX_NAME]] = now_ms
            while self._seen:
                oldest = next(iter(self._seen))
                if self._seen[oldest] > now_ms - SEEN_MS and len(self._seen) <= MAX_VIEWERS:
                    break
                del self._seen[oldest]
            return min(max(SHORTEST_MS, EACH_MS * len(self._seen)), LONGEST_MS)


class _Kept(NamedTuple):
    until_ms: int
    response: HttpResponse


class Console:
    """Server of the pages below ``/console``.

    Args: ``broker``: a running broker; ``access``: access check of the HTTP port; ``may_edit``: true if quotas can be
    changed.
    Threads: any; ``AT_ONCE`` pages are rendered at the same time.
    """

    def __init__(self, broker: Broker, access: HttpAccess, may_edit: bool = False) -> None:
        clock = broker.clock
        self._clock: BaseClock = clock
        self._access = access
        self._sessions, self._secret = Sessions(clock), FormSecret()
        self._viewers = Viewers(clock)
        self._renderer = Renderer()
        self._turns = threading.Semaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str, bool, str], _Kept] = {}
        history = History(lambda: broker_totals(broker.parts), lambda: broker.verdicts, clock)
        self._site = Site(broker, history, may_edit, clock.epoch_ms())

    def close(self) -> None:
        """Stop observing the broker. Idempotent."""
        self._site.history.stop()

    # ------------------------------------------------------------ requests

    def respond(self, request: HttpRequest) -> HttpResponse:
        """Serve one request; never raises."""
        try:
            response = self._respond(request)
        except PageError as error:
            response = self._failed(request, error)
        except Exception:
            if self._site.broker.is_running:
                logger.exception("%s cannot be shown", printable(request.path[:200]))
                response = self._failed(
                    request, PageError(500, "This page cannot be shown; the broker's log says why.")
                )
            else:
                response = HttpResponse(503, b"The broker stops.\n")
        kept = any(name == "Cache-Control" for name, _ in response.headers)
        return response._replace(headers=(*SECURE, *(() if kept else (NOT_STORED,)), *response.headers))

    def _respond(self, request: HttpRequest) -> HttpResponse:
        path = request.path.removeprefix(ROOT).strip("/")
        if request.method not in METHODS:
            refused, allow = only_these(METHODS)
            return self._failed(request, PageError(405, sentence(refused)))._replace(headers=(allow,))
        if path.startswith("assets/"):
            return _asset(path.removeprefix("assets/"))
        if request.method == "POST":
            self._check_origin(request)
            form = _form(request)
            if path == "sign-in":
                return self._sign_in(request, form)
        elif path == "sign-in":
            return self._sign_in_page(request, "")
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        if request.method == "POST":
            return self._post(request, path, form)
        page = PAGES.get(path)
        if page is None:
            raise PageError(404, "There is no such page.")
        return self._show(request, path, page)

    def _show(self, request: HttpRequest, path: str, page: Page) -> HttpResponse:
        """Return a page, rendered now or a moment ago for another viewer."""
        self._site.history.use()
        is_part = "kb-part" in request.headers or request.headers.get("hx-target", "").endswith("#live")
        key = (path, request.query, is_part, cookie_of(request.headers))
        again_ms = self._viewers.again_ms(request.headers.get("kb-viewer", ""))
        found = self._kept_response(key)
        if found is None:
            if not self._turns.acquire(timeout=WAIT_S):
                raise PageError(503, "Too many pages are being made at once. Try again in a moment.")
            try:
                found = self._response(request, path, page(self._site, Query.parse(request.query)), is_part)
            finally:
                self._turns.release()
            self._keep(key, found)
        return found._replace(headers=(*found.headers, ("KB-Again-Ms", str(again_ms))))

    def _response(self, request: HttpRequest, path: str, result: Result, is_part: bool) -> HttpResponse:
        if isinstance(result, Download):
            name = ("Content-Disposition", f'attachment; filename="{result.file_name}"')
            return HttpResponse(200, result.data, "application/octet-stream", (name,))
        if isinstance(result, Json):
            body = json.dumps(result.value, allow_nan=False, separators=(",", ":")).encode("ascii")
            return HttpResponse(200, body, "application/json")
        values = {**self._frame(request, path, result.title), **result.values}
        make = self._renderer.live_part if is_part else self._renderer.page
        return HttpResponse(result.status, make(result.template, values), HTML)

    def _frame(self, request: HttpRequest, path: str, title: str) -> dict[str, Any]:
        """Return the values that the frame of every page needs."""
        cookie = cookie_of(request.headers)
        query = request.query if path in PAGES and request.method != "POST" else ""
        return {
            "root": ROOT,
            "menu": MENU,
            "here": BELOW.get(path, path),
            "title": title,
            "live_url": f"{ROOT}/{path}" + (f"?{query}" if query else ""),
            "is_signed_in": bool(cookie) and self._sessions.knows(cookie),
            "form_secret": self._secret.of(cookie),
        }

    def _failed(self, request: HttpRequest, error: PageError) -> HttpResponse:
        path = request.path.removeprefix(ROOT).strip("/")
        if "kb-part" in request.headers or path == "rates" or path.startswith("assets/"):
            return HttpResponse(error.status, f"{error.sentence}\n".encode("utf-8", "replace"), PLAIN)
        view = View(
            "Cannot be shown" if error.status != 404 else "Not found",
            "error.html",
            {"sentence": error.sentence, "href": error.href},
        )
        return self._response(request, path, view._replace(status=error.status), is_part=False)

    # ------------------------------------------------------------ pages that are kept for a moment

    def _kept_response(self, key: tuple[str, str, bool, str]) -> HttpResponse | None:
        with self._lock:
            kept = self._kept.get(key)
            return kept.response if kept is not None and kept.until_ms > self._clock.now_ms() else None

    def _keep(self, key: tuple[str, str, bool, str], response: HttpResponse) -> None:
        if response.status != 200 or len(response.body) > MAX_KEPT_BYTES:
            return
        now_ms = self._clock.now_ms()
        with self._lock:
            self._kept = {other: kept for other, kept in self._kept.items() if kept.until_ms > now_ms}
            while len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = _Kept(now_ms + KEPT_MS, response)

    # ------------------------------------------------------------ who may

    def _refusal(self, request: HttpRequest) -> HttpResponse | None:
        """Return the response to an unauthorized client; None if it may see the pages."""
        cookie = cookie_of(request.headers)
        if cookie and self._sessions.knows(cookie) and request.headers.get("sec-fetch-site") not in _FOREIGN:
            return None
        refused = self._access.refusal(request.address, _message(request.headers))
        if refused is None:
            return None
        can_sign_in = self._access.has_token and refused.status == 401
        if not can_sign_in or "kb-part" in request.headers or request.method == "POST":
            return self._failed(request, PageError(refused.status, sentence(refused.sentence)))
        return HttpResponse(303, b"", PLAIN, (("Location", f"{ROOT}/sign-in"),))

    def _check_origin(self, request: HttpRequest) -> None:
        """Check that a POST comes from a page of this port. Raises: PageError 403."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin", "")
        is_own = bool(host) and origin in (f"http://{host}", f"https://{host}")
        if not is_own or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise PageError(403, "This form came from another site's page, or without its origin.")

    def _sign_in_page(self, request: HttpRequest, problem: str, status: int = 200) -> HttpResponse:
        values = {"problem": problem, "has_token": self._access.has_token}
        return self._response(request, "sign-in", View("Sign in", "sign_in.html", values, status), is_part=False)

    def _sign_in(self, request: HttpRequest, form: Query) -> HttpResponse:
        refused = self._access.token_refusal(request.address, form.text("token"))
        if refused is not None:
            has_to_wait = refused.retry_after_s > 0
            page = self._sign_in_page(request, sentence(refused.sentence), refused.status if has_to_wait else 403)
            return page._replace(headers=(("Retry-After", str(refused.retry_after_s)),)) if has_to_wait else page
        value = self._sessions.begin()
        name = cookie_name(request.headers)
        cookie = f"{name}={value}; Path={ROOT}; Max-Age={SESSION_MS // 1000}; HttpOnly; SameSite=Strict"
        return HttpResponse(303, b"", PLAIN, (("Location", f"{ROOT}/"), ("Set-Cookie", cookie)))

    # ------------------------------------------------------------ forms

    def _post(self, request: HttpRequest, path: str, form: Query) -> HttpResponse:
        if not self._secret.is_right(cookie_of(request.headers), form.text("form_secret")):
            raise PageError(403, "This form is out of date: the broker was started again. Load the page once more.")
        if path == "sign-out":
            self._sessions.end(cookie_of(request.headers))
            cookie = f"{cookie_name(request.headers)}=; Path={ROOT}; Max-Age=0; HttpOnly; SameSite=Strict"
            return HttpResponse(303, b"", PLAIN, (("Location", f"{ROOT}/sign-in"), ("Set-Cookie", cookie)))
        if path == "quota/preview":
            return self._response(request, path, quotas.preview(self._site, form), is_part=False)
        if path == "quota/apply":
            location = quotas.apply(self._site, form)
            logger.info("console: %s changed a quota: %s", request.address, location)
            with self._lock:
                self._kept.clear()
            return HttpResponse(303, b"", PLAIN, (("Location", location),))
        raise PageError(404, "There is no such form.")


_FOREIGN = ("cross-site", "same-site")


def _message(headers: Mapping[str, str]) -> Message:
    """Return headers in the form that the port's access check expects."""
    found = Message()
    for name, value in headers.items():
        found[name] = value
    return found


def _form(request: HttpRequest) -> Query:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise PageError(415, "Expected the fields of a form.")
    try:
        return Query.parse(request.body.decode("ascii"))
    except UnicodeDecodeError:
        raise PageError(400, "The form cannot be read: expected ASCII.") from None


def _asset(name: str) -> HttpResponse:
    """Return one of the console's static files."""
    kind = KINDS.get(Path(name).suffix)
    if kind is None or name not in {file.name for file in ASSETS.iterdir()}:
        raise PageError(404, "There is no such file.")
    return HttpResponse(200, (ASSETS / name).read_bytes(), kind, (("Cache-Control", "private, max-age=3600"),))
