"""The console: access checks, routing of pages and forms, and the headers of responses."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kbroker._core.clock import BaseClock
from kbroker.broker import Broker
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.schema_registry import SchemaRegistry
from kbroker.common.errors import KafkaError
from kbroker.common.http_messages import METHODS, PLAIN, HttpRequest, HttpResponse, only_these
from kbroker.common.loggers import get_logger, log_from_info
from kbroker.common.printable import printable
from kbroker.common.security.acls import CONSOLE_OPERATOR, Operation, ResourceType
from kbroker.console import changes
from kbroker.console.applied import Applied
from kbroker.console.connections import Connections, Identity, in_process, unreachable
from kbroker.console.denied import denied, page_error
from kbroker.console.history import History, broker_totals
from kbroker.console.lag_history import LagHistory, Shown
from kbroker.console.pages import ACTIONS, PAGES, Page, Result, menu
from kbroker.console.passwords import PasswordCheck, Passwords, accepted
from kbroker.console.rendering import Renderer
from kbroker.console.requests import PageError, Query, sentence
from kbroker.console.sign_in import SESSION_MS, FormSecret, Sessions, cookie_name, cookie_of
from kbroker.console.site import ROOT, Download, Json, Local, Memory, Parts, Site, View
from kbroker.console.topic_history import TopicHistory
from kbroker.console.views.groups import measured_lag
from kbroker.observe.http_access import HttpAccess

logger = get_logger(__name__)
change_logger = get_logger("kbroker.console.changes")  # written from INFO on: one line for each change and sign-in

ANONYMOUS = "User:ANONYMOUS"
ASSETS = Path(__file__).with_name("assets")
HTML = "text/html; charset=utf-8"
AT_ONCE = 4  # maximum number of pages rendered at the same time: each may use megabytes
WAIT_S = 5.0  # time that a further page waits for its turn
KEPT_MS = 1000  # time for which a rendered page is served again
MAX_KEPT = 64
MAX_KEPT_BYTES = 1 << 20
# refresh of open pages: all together at most ten times a second
SHORTEST_MS = 2000
LONGEST_MS = 30_000
EACH_MS = 100  # added to the interval of all pages for each viewer
SEEN_MS = 60_000
MAX_VIEWERS, MAX_OF_USER = 2000, 20
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


class Viewers:
    """Number of pages that were refreshed within the last minute. Threads: any."""

    def __init__(self, clock: BaseClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], int] = {}  # by user and the page's own name, the most recent last

    def again_ms(self, viewer: str, user: str = "") -> int:
        """Note that a page is open; return its refresh interval in milliseconds, which grows with the number of pages.

        Args: ``viewer``: the page's own name, empty while it is being loaded. ``user``: the signed-in user, for
        whom at most ``MAX_OF_USER`` pages count.
        """
        now_ms = self._clock.now_ms()
        with self._lock:
            if viewer:
                page = (user, viewer[:MAX_NAME])
                self._seen.pop(page, None)
                own = [one for one in self._seen if one[0] == user] if user else []
                if len(own) >= MAX_OF_USER:
                    del self._seen[own[0]]
                self._seen[page] = now_ms
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

    Args: ``parts``: the cluster; ``access``: access check of the HTTP port; ``operator``: principal of users without a
    sign-in and of the token's holder, empty if the connections have one identity; ``passwords``: check of SCRAM users,
    None without them.
    Threads: any; ``AT_ONCE`` pages are rendered at the same time.
    """

    def __init__(
        self, parts: Parts, access: HttpAccess, operator: str = "", passwords: PasswordCheck | None = None
    ) -> None:
        clock = parts.clock
        log_from_info("kbroker.console.changes")
        self._clock: BaseClock = clock
        self._access = access
        self._operator, self._passwords = operator, passwords
        self._sessions, self._secret = Sessions(clock), FormSecret()
        self._viewers = Viewers(clock)
        self._renderer = Renderer()
        self._turns = threading.Semaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._kept: dict[tuple[object, ...], _Kept] = {}
        self._parts = parts
        self._lags = LagHistory(self._measured_lag, clock)
        self._menu = menu(parts.local is not None)
        self._pages = {path: page for path, page in PAGES.items() if parts.local is not None or not page.needs_broker}

    @classmethod
    def of_broker(cls, broker: Broker, access: HttpAccess, may_edit: bool = False) -> Console:
        """Return the console of a running broker; ``may_edit``: whether its pages may change things."""
        clock = broker.clock
        topic_history = TopicHistory(lambda: broker.context.topics.all(), clock)
        history = History(lambda: broker_totals(broker.parts), lambda: broker.verdicts, clock, (topic_history.look,))
        parts = Parts(
            Connections(in_process(broker), clock),
            clock,
            Memory(clock),
            Local(broker, history, topic_history),
            f"broker {broker.context.node_id}",
            may_edit,
            clock.epoch_ms(),
            Applied(clock),
            _registry(broker),
        )
        operator = ANONYMOUS if broker.context.auth.authorizer is None else CONSOLE_OPERATOR
        mechanisms, credentials = accepted(broker.config), broker.context.credentials
        passwords = Passwords(credentials.find, credentials.users, mechanisms) if mechanisms else None
        return cls(parts, access, operator, passwords)

    def close(self) -> None:
        """Stop observing the broker, and close the connections to it. Idempotent."""
        self._lags.stop()
        if self._parts.local is not None:
            self._parts.local.history.stop()
        self._parts.connections.close()

    # ------------------------------------------------------------ requests

    def respond(self, request: HttpRequest) -> HttpResponse:
        """Serve one request; never raises."""
        try:
            response = self._respond(request)
        except PageError as error:
            response = self._failed(request, error)
        except BrokerConnectionError as error:
            response = self._failed(request, unreachable(error))
        except Exception:
            if self._parts.local is None or self._parts.local.broker.is_running:
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
        page = self._pages.get(path) or (self._pages["cluster"] if not path else None)
        if page is None:
            raise PageError(404, "There is no such page.")
        return self._show(request, path, page)

    def _site(self, request: HttpRequest) -> Site:
        """Return the data for one request, as the user of its session."""
        principal = self._sessions.principal(cookie_of(request.headers)) or self._operator
        return Site(self._parts, Identity(principal, request.address), self._lags)

    def _measured_lag(self, shown: Shown) -> int | None:
        """Return the lag of a group, read with the rights of its viewer; None if it is unknown."""
        with self._parts.connections.lease(shown.identity) as cluster:
            return measured_lag(cluster, shown)

    def _show(self, request: HttpRequest, path: str, page: Page) -> HttpResponse:
        """Return a page, rendered now or, for the same session, within the last KEPT_MS."""
        if self._parts.local is not None:
            self._parts.local.history.use()
        is_part = "kb-part" in request.headers or request.headers.get("hx-target", "").endswith("#live")
        site = self._site(request)
        key = (path, request.query, is_part, cookie_of(request.headers), site.identity)
        found = self._kept_response(key)
        if found is None:
            with self._turn(), site:
                result = self._made(site, page, Query.parse(request.query))
                found = self._response(request, path, result, is_part)
            self._keep(key, found)
        user = self._sessions.principal(cookie_of(request.headers)) or ""
        again_ms = self._viewers.again_ms(request.headers.get("kb-viewer", ""), user)
        return found._replace(headers=(*found.headers, ("KB-Again-Ms", str(again_ms))))

    def _made(self, site: Site, page: Page, query: Query) -> Result:
        """Return the page as its user may see it. Raises: PageError 403 with the missing ACL, and others."""
        if page.needs_broker and not page.checks_acls and not site.may_describe_cluster:
            raise denied(site.identity.principal, Operation.DESCRIBE, ResourceType.CLUSTER)
        try:
            return page.make(site, query)
        except KafkaError as error:
            raise page_error(error, site.identity.principal) from None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for the turn of a page. Raises: PageError 503 if it does not come soon."""
        if not self._turns.acquire(timeout=WAIT_S):
            raise PageError(503, "Too many pages are being made at once. Try again in a moment.")
        try:
            yield
        finally:
            self._turns.release()

    def _response(self, request: HttpRequest, path: str, result: Result, is_part: bool) -> HttpResponse:
        if isinstance(result, Download):
            name = ("Content-Disposition", f'attachment; filename="{result.file_name}"')
            return HttpResponse(200, result.data, "application/octet-stream", (name,))
        if isinstance(result, Json):
            body = json.dumps(result.value, allow_nan=False, separators=(",", ":")).encode("ascii")
            return HttpResponse(200, body, "application/json")
        values = {**self._frame(request, path, result), **result.values}
        make = self._renderer.live_part if is_part else self._renderer.page
        return HttpResponse(result.status, make(result.template, values), HTML)

    def _frame(self, request: HttpRequest, path: str, view: View) -> dict[str, Any]:
        """Return the values that the frame of every page needs."""
        cookie = cookie_of(request.headers)
        query = request.query if path in PAGES and request.method != "POST" else ""
        principal = self._sessions.principal(cookie) if cookie else None
        here = view.entry or _entry_of(path)
        return {
            "root": ROOT,
            "menu": self._menu,
            "here": here,
            "section": next((one for one in self._menu if any(entry.page == here for entry in one.entries)), None),
            "title": view.title,
            "live_url": f"{ROOT}/{path}" + (f"?{query}" if query else ""),
            "is_signed_in": principal is not None,
            "can_sign_in": principal is None and self._passwords is not None,
            "user": (principal or self._operator).partition(":")[2],
            "place": self._parts.place,
            "may_edit": self._parts.may_edit,
            "has_broker": self._parts.local is not None,
            "edit_setting": self._parts.edit_setting,
            "done": "done=1" in request.query.split("&"),
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

    # ------------------------------------------------------------ pages that are cached briefly

    def _kept_response(self, key: tuple[object, ...]) -> HttpResponse | None:
        with self._lock:
            kept = self._kept.get(key)
            return kept.response if kept is not None and kept.until_ms > self._clock.now_ms() else None

    def _keep(self, key: tuple[object, ...], response: HttpResponse) -> None:
        if response.status != 200 or len(response.body) > MAX_KEPT_BYTES:
            return
        now_ms = self._clock.now_ms()
        with self._lock:
            self._kept = {other: kept for other, kept in self._kept.items() if kept.until_ms > now_ms}
            while len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = _Kept(now_ms + KEPT_MS, response)

    # ------------------------------------------------------------ authorization

    def _refusal(self, request: HttpRequest) -> HttpResponse | None:
        """Return the response to an unauthorized client; None if it may see the pages."""
        cookie = cookie_of(request.headers)
        if (
            cookie
            and self._sessions.principal(cookie) is not None
            and request.headers.get("sec-fetch-site") not in _FOREIGN
        ):
            return None
        refused = self._access.refusal(request.address, request.headers)
        if refused is None:
            return None
        can_sign_in = self._passwords is not None or (self._access.has_token and refused.status == 401)
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
        values = {"problem": problem, "has_token": self._access.has_token, "has_users": self._passwords is not None}
        return self._response(request, "sign-in", View("Sign in", "sign_in.html", values, status), is_part=False)

    def _sign_in(self, request: HttpRequest, form: Query) -> HttpResponse:
        """Begin a session for the holder of the token, or for a SCRAM user."""
        user = form.text("user")
        signed_in = None
        if user and self._passwords is not None:
            refused = self._access.password_refusal(request.address)
            if refused is None:
                with self._turn():
                    signed_in = self._passwords.sign_in(user, form.text("password"))
                refused = self._access.password_refusal(request.address, signed_in is not None)
        else:
            refused = self._access.token_refusal(request.address, form.text("token"))
        if refused is not None:
            has_to_wait = refused.retry_after_s > 0
            page = self._sign_in_page(request, sentence(refused.sentence), refused.status if has_to_wait else 403)
            return page._replace(headers=(("Retry-After", str(refused.retry_after_s)),)) if has_to_wait else page
        if signed_in is not None:
            change_logger.info("console: %s signed in from %s", printable(signed_in.principal), request.address)
        value = self._sessions.begin(*signed_in) if signed_in is not None else self._sessions.begin()
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
        name, _, step = path.rpartition("/")
        action = ACTIONS.get(name)
        if action is None or step not in ("preview", "check", "apply"):
            raise PageError(404, "There is no such form.")
        with self._turn(), self._site(request) as site:
            try:
                return self._act(request, site, name, action, step, form)
            except KafkaError as error:
                raise page_error(error, site.identity.principal) from None

    def _act(
        self, request: HttpRequest, site: Site, name: str, action: changes.Action, step: str, form: Query
    ) -> HttpResponse:
        """Run one step of a form: show its change, check it, or make it."""
        path = f"{name}/{step}"
        if step == "check":
            return self._response(request, path, changes.check(site, action, form), is_part=False)
        if step == "preview":
            return self._response(request, path, changes.preview(site, name, action, form), is_part=False)
        cookie = cookie_of(request.headers)
        fields = hashlib.sha256(request.body).digest()
        sent, owner = form.text("was"), (cookie, self._sessions.principal(cookie), site.identity, name, fields)
        with self._parts.applied.alone("form", sent):
            result = self._parts.applied.result(sent, owner)
            if result is not None:
                return self._response(request, path, result, is_part=False)
            change, view = changes.apply(site, name, action, form)
            if view is not None and view.status == 200:
                self._parts.applied.keep(sent, owner, view)
        if view is not None and view.status != 200:
            return self._response(request, path, view, is_part=False)
        who = printable(site.identity.principal or "the operator")
        change_logger.info("console: %s from %s: %s", who, request.address, change.line)
        self._parts.memory.clear()
        with self._lock:
            self._kept.clear()
        if view is not None:
            return self._response(request, path, view, is_part=False)
        location = f"{change.href}{'&' if '?' in change.href else '?'}done=1"
        return HttpResponse(303, b"", PLAIN, (("Location", location),))


def _registry(broker: Broker) -> SchemaRegistry | None:
    """Return the Schema Registry of the configuration; None without one, or if it cannot be used, which is logged."""
    url = broker.config.text("kbroker.console.registry.url")
    if not url:
        return None
    try:
        return SchemaRegistry(url, None, broker.config.text("kbroker.console.registry.ca") or None)
    except (ValueError, OSError) as error:
        logger.error("console: messages are shown without the Schema Registry: %s", error)
        return None


def _entry_of(path: str) -> str:
    """Return the menu entry of a page or of a form's step."""
    page = PAGES.get(path) or PAGES.get(path.partition("/")[0])
    return page.entry if page is not None else path


_FOREIGN = ("cross-site", "same-site")


def _form(request: HttpRequest) -> Query:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise PageError(415, "Expected the fields of a form.")
    try:
        return Query.parse(request.body.decode("ascii"))
    except UnicodeDecodeError:
        raise PageError(400, "The form cannot be read: expected ASCII.") from None


def _asset(name: str) -> HttpResponse:
    """Return one of the console's static files. Raises: PageError 404."""
    kind = KINDS.get(Path(name).suffix)
    if kind is None or name not in {file.name for file in ASSETS.iterdir()}:
        raise PageError(404, "There is no such file.")
    return HttpResponse(200, (ASSETS / name).read_bytes(), kind, (("Cache-Control", "private, max-age=3600"),))
