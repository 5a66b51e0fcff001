"""A broker with a console, a console that a test has for itself, and requests of a browser, straight to its pages."""

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from html import unescape
from urllib.parse import unquote, urlencode

from kbroker import console
from kbroker.broker import Broker
from kbroker.common.http_messages import HttpRequest, HttpResponse
from kbroker.console.app import Console
from kbroker.observe.http_access import HttpAccess

HOST = "127.0.0.1:9400"
TOKEN = "a-token-of-some-length"
SETTINGS: dict[str, object] = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "kbroker.in.memory": True,
    "kbroker.metrics.listener": "127.0.0.1:0",
}
#: A broker whose clients are SCRAM users, and whose ACLs decide what they may do.
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
    """A broker that serves its console at the HTTP port, as `kbroker serve` does."""
    made = Broker(settings)
    console.mount(made)
    with made:
        yield made


@contextmanager
def pages_of(broker: Broker, token: str | None = None, may_edit: bool = False) -> Iterator[Console]:
    """A console of a broker beside that of its port."""
    with closing(Console.of_broker(broker, HttpAccess(token, broker.clock), may_edit)) as made:
        yield made


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


def secret_of(page: str) -> str:
    """The hidden field of a page's forms."""
    found = re.search(r'name="form_secret" value="([0-9a-f]+)"', page)
    assert found is not None
    return found[1]


def was_of(page: str) -> str:
    """The hidden field of a shown change, which the form that applies it sends back."""
    found = re.search(r'name="was" value="([0-9a-f]+)"', page)
    assert found is not None
    return found[1]


def apply(pages: Console, action: str, fields: dict[str, str], typed: str = "", **headers: str) -> HttpResponse:
    """Look at a change and apply it as it was shown; ``typed``: the confirmation."""
    shown = post(pages, f"{action}/preview", fields, **headers)
    assert shown.status == 200, shown.body.decode()
    return post(pages, f"{action}/apply", {**hidden_fields(shown.body.decode()), "confirm": typed}, **headers)


def hidden_fields(page: str) -> dict[str, str]:
    """The hidden fields of a page."""
    kept = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page)
    return {unescape(name): unescape(value) for name, value in kept}


def sign_in(pages: Console, user: str = "", password: str = "", token: str = "", address: str = "127.0.0.1") -> str:
    """Sign in as a user, or with the token; return the cookie, for the argument ``cookie`` of a request."""
    fields = {"user": user, "password": password} if user else {"token": token}
    response = post(pages, "sign-in", fields, address)
    assert response.status == 303, response.body.decode()
    return dict(response.headers)["Set-Cookie"].partition(";")[0]


class Browser:
    """Requests pages at an HTTP port of this machine; keeps its cookie. Args: ``address``: host:port."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cookie = ""

    def ask(self, target: str, fields: dict[str, str] | None = None, **headers: str) -> tuple[int, str]:
        """Status and page; with ``fields`` their form is sent."""
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
        """Look at a change and apply it as it was shown; ``typed``: the confirmation."""
        fields = {"form_secret": secret_of(self.ask("topic-new")[1]), **fields}
        status, page = self.ask(f"{action}/preview", fields)
        return (
            (status, page) if status != 200 else self.ask(f"{action}/apply", {**hidden_fields(page), "confirm": typed})
        )


def browser_of(broker: Broker) -> Browser:
    """A browser at the HTTP port of a broker."""
    assert broker.metrics_url is not None
    return Browser(broker.metrics_url.removeprefix("http://"))


def words_of(page: str) -> str:
    """The text of a page without its markup, in one line."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page)))
