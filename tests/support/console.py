"""Console of a broker for tests: served at a port, called without a port, and requested as a browser does."""

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from html import unescape
from urllib.parse import unquote, urlencode

from kbroker import console
from kbroker.broker import Broker
from kbroker.client.cluster import Cluster
from kbroker.common.http_messages import HttpRequest, HttpResponse
from kbroker.common.security.acls import CONSOLE_OPERATOR
from kbroker.console.app import Console
from kbroker.observe.http_access import HttpAccess

HOST = "127.0.0.1:9400"
TOKEN = "a-token-of-some-length"
SETTINGS: dict[str, object] = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "kbroker.in.memory": True,
    "kbroker.metrics.listener": "127.0.0.1:0",
}
#: A broker whose clients are SCRAM users with ACLs.
SECURED: dict[str, object] = {
    **SETTINGS,
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root",
    "kbroker.console.token": TOKEN,
}


@contextmanager
def served(settings: Mapping[str, object]) -> Iterator[Broker]:
    """Yield a broker that serves its console at the HTTP port, as `kbroker serve` does."""
    made = Broker(settings)
    console.mount(made)
    with made:
        yield made


@contextmanager
def pages_of(broker: Broker, token: str | None = None, may_edit: bool = False) -> Iterator[Console]:
    """Yield a second console of a broker, which no port serves."""
    with closing(Console.of_broker(broker, HttpAccess(token, broker.clock), may_edit)) as made:
        yield made


def ask(
    pages: Console, target: str, address: str = "127.0.0.1", method: str = "GET", body: bytes = b"", **headers: str
) -> HttpResponse:
    """Return the response to a browser's request for a page below /console. ``headers`` have _ for hyphens."""
    path, _, query = target.partition("?")
    found = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return pages.respond(HttpRequest(method, f"/console/{unquote(path)}", query, found, address, body))


def post(pages: Console, path: str, fields: dict[str, str], address: str = "127.0.0.1", **headers: str) -> HttpResponse:
    """Send a form as a browser does; return the response."""
    headers = {"origin": f"http://{HOST}", "content_type": "application/x-www-form-urlencoded", **headers}
    return ask(pages, path, address, "POST", urlencode(fields).encode(), **headers)


def secret_of(page: str) -> str:
    """Return the hidden field ``form_secret`` of a page's forms."""
    found = re.search(r'name="form_secret" value="([0-9a-f]+)"', page)
    assert found is not None
    return found[1]


def was_of(page: str) -> str:
    """Return the hidden field ``was`` of a shown change, which the form that applies the change sends back."""
    found = re.search(r'name="was" value="([0-9a-f]+)"', page)
    assert found is not None
    return found[1]


def apply(pages: Console, action: str, fields: dict[str, str], typed: str = "", **headers: str) -> HttpResponse:
    """Preview a change and apply it as shown. Args: ``typed``: the confirmation."""
    shown = post(pages, f"{action}/preview", fields, **headers)
    assert shown.status == 200, shown.body.decode()
    return post(pages, f"{action}/apply", {**hidden_fields(shown.body.decode()), "confirm": typed}, **headers)


def hidden_fields(page: str) -> dict[str, str]:
    """Return the hidden fields of a page."""
    kept = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page)
    return {unescape(name): unescape(value) for name, value in kept}


def sign_in(pages: Console, user: str = "", password: str = "", token: str = "", address: str = "127.0.0.1") -> str:
    """Sign in as a user or with the token; return the cookie, which is the argument ``cookie`` of later requests."""
    fields = {"user": user, "password": password} if user else {"token": token}
    response = post(pages, "sign-in", fields, address)
    assert response.status == 303, response.body.decode()
    return dict(response.headers)["Set-Cookie"].partition(";")[0]


class Browser:
    """Browser of the console at a port of this machine, with one cookie. Args: ``address``: host:port."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cookie = ""

    def ask(self, target: str, fields: dict[str, str] | None = None, **headers: str) -> tuple[int, str]:
        """Return status and page of a GET request, or of a POST request with a form if ``fields`` are given."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        sent = {"Cookie": self.cookie, **headers}
        body = None
        if fields is not None:
            body = urlencode(fields)
            sent |= {"Origin": f"http://{self.address}", "Content-Type": "application/x-www-form-urlencoded"}
        try:
            connection.request("GET" if body is None else "POST", f"/console/{target}", body, sent)
            response = connection.getresponse()
            self.cookie = response.headers.get("Set-Cookie", self.cookie).partition(";")[0]
            return response.status, response.read().decode()
        finally:
            connection.close()

    def apply(self, action: str, fields: dict[str, str], typed: str = "") -> tuple[int, str]:
        """Preview a change and apply it as shown; return status and page. Args: ``typed``: the confirmation."""
        fields = {"form_secret": secret_of(self.ask("topic-new")[1]), **fields}
        status, page = self.ask(f"{action}/preview", fields)
        return (
            (status, page) if status != 200 else self.ask(f"{action}/apply", {**hidden_fields(page), "confirm": typed})
        )


def browser_of(broker: Broker) -> Browser:
    """Return a browser for the HTTP port of a broker."""
    assert broker.metrics_url is not None
    return Browser(broker.metrics_url.removeprefix("http://"))


def words_of(page: str) -> str:
    """Return the text of a page without markup, in one line."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page)))


def text_of(response: HttpResponse) -> str:
    """Return the text of a response's page without its markup, in one line."""
    return words_of(response.body.decode())


def form_secret(pages: Console, cookie: str) -> str:
    """Return the secret of the forms of a session, or of a browser without a session if the cookie is empty."""
    return secret_of(ask(pages, "sign-in" if cookie else "users", cookie=cookie).body.decode())


def preview(pages: Console, cookie: str, action: str, **fields: str) -> HttpResponse:
    """Return the preview of a change with the secret of the session's forms."""
    return post(pages, f"{action}/preview", {"form_secret": form_secret(pages, cookie), **fields}, cookie=cookie)


def change(pages: Console, cookie: str, action: str, typed: str = "", **fields: str) -> HttpResponse:
    """Preview and apply a change with the secret of the session's forms; ``typed``: the confirmation."""
    return apply(pages, action, {"form_secret": form_secret(pages, cookie), **fields}, typed, cookie=cookie)


def cluster_of(broker: Broker, principal: str = CONSOLE_OPERATOR, address: str = "127.0.0.1") -> Cluster:
    """Return a client of a principal that connects within the process."""
    connect = broker.parts.server.connect
    return Cluster("broker:1", open_stream=lambda at, timeout_s: connect(principal, address))
