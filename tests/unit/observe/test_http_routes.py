"""JSON routes of the HTTP port: access, responses to invalid requests, and routes that fail."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from email.message import Message
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigError
from kbroker.observe.http_access import HttpAccess, is_local_name, is_loopback
from kbroker.observe.http_routes import HttpError, RouteTable, limit_of, only
from kbroker.observe.metrics_server import MAX_ROUTE_CALLS, MetricsServer
from kbroker.observe.wrong_tokens import GUESS_MS, GUESSES
from tests.support.errors import raising

TOKEN = "a-token-of-some-length"


class Port:
    """HTTP port with routes that a test adds."""

    def __init__(self) -> None:
        exposition: Any = SimpleNamespace(text=lambda accept="": (b"", "text/plain"))
        self.routes = RouteTable()
        access = HttpAccess(TOKEN, VirtualClock(1_700_000_000_000))
        self.server = MetricsServer(exposition, str, "127.0.0.1", 0, self.routes, access)
        self.server.start()

    def ask(self, target: str, method: str = "GET", **headers: str) -> tuple[int, str, Message]:
        """Return the status, the body and the headers of a response."""
        with closing(http.client.HTTPConnection(self.server.url.removeprefix("http://"), timeout=20)) as connection:
            connection.request(method, target, headers={k.replace("_", "-"): v for k, v in headers.items()})
            response = connection.getresponse()
            return response.status, response.read().decode(), response.headers


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.server.stop()


def test_a_route_is_json_for_this_machine(port: Port) -> None:
    port.routes.add("/echo", lambda query: {"query": query, "text": "\x1b[31m é"})
    status, body, headers = port.ask("/echo?a=1&b=%C3%A9&c")
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == (200, "application/json", "no-store")
    assert json.loads(body) == {"query": {"a": "1", "b": "é", "c": ""}, "text": "\x1b[31m é"}
    assert body.isascii(), "control characters in client names are escaped"
    assert "\x1b" not in body
    assert port.ask("/echo/")[0] == 200
    assert port.ask("/echo", "HEAD")[:2] == (200, "")
    assert port.ask("/none")[:2] == (404, "there are /metrics, /health, /ready and /echo\n")


def test_a_bad_query_is_a_sentence(port: Port) -> None:
    def strict(query: dict[str, str]) -> int:
        only(query, "limit")
        return limit_of(query, "limit", 10, 100)

    port.routes.add("/strict", strict)
    assert port.ask("/strict")[1] == "10\n"
    assert port.ask("/strict?limit=100")[1] == "100\n"
    for wrong in (
        "limit=0",
        "limit=101",
        "limit=x",
        "limit=",
        "limit=1&limit=2",
        "limt=1",
        "limit=%FF",
        "limit=%D9%A1",
    ):
        status, body, _ = port.ask(f"/strict?{wrong}")
        assert (status, body.count("\n")) == (400, 1), wrong
    assert port.ask("/strict?" + "&".join(f"a{n}=1" for n in range(100)))[0] == 400


def test_a_route_that_fails_is_one_sentence_and_a_log_line(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    port.routes.add("/fails", raising(KeyError("secret")))
    port.routes.add("/refuses", raising(HttpError(404, "no such user")))
    port.routes.add("/unshowable", lambda query: float("nan"))
    assert port.ask("/fails")[:2] == (500, "/fails cannot be shown; the log says why\n")
    assert [record.message for record in caplog.records] == ["/fails cannot be shown"]
    assert port.ask("/refuses")[:2] == (404, "no such user\n")
    assert port.ask("/unshowable")[0] == 500
    assert port.ask("/health")[0] == 200


def test_a_route_has_bounded_calls_at_once(port: Port) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def waits(query: dict[str, str]) -> str:
        begun.release()
        go_on.wait(20)
        return "done"

    port.routes.add("/waits", waits)
    answers: list[int] = []
    callers = [threading.Thread(target=lambda: answers.append(port.ask("/waits")[0])) for _ in range(MAX_ROUTE_CALLS)]
    try:
        for caller in callers:
            caller.start()
            assert begun.acquire(timeout=20)
        status, _, headers = port.ask("/waits")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert port.ask("/ready")[0] == 200
    finally:
        go_on.set()
        for caller in callers:
            caller.join(20)
    assert answers == [200] * MAX_ROUTE_CALLS


def test_a_route_is_behind_the_check(port: Port) -> None:
    """A route is not called without access; /metrics, /health and /ready need none."""
    called: list[object] = []
    port.routes.add("/secret", called.append)
    for headers, status, more in (
        ({"Host": "evil.example"}, 403, None),
        ({"Sec_Fetch_Site": "cross-site"}, 403, None),
        ({"Via": "1.1 proxy"}, 401, "Bearer"),
        ({"Authorization": "Bearer wrong"}, 401, "Bearer"),
    ):
        found, body, sent = port.ask("/secret", **headers)
        assert (found, sent["WWW-Authenticate"], sent["Retry-After"]) == (status, more, None), body
        assert body.count("\n") == 1
    assert called == []
    assert port.ask("/secret", Host="evil.example", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert len(called) == 1
    for path in ("/metrics", "/health", "/ready"):
        assert port.ask(path, Host="evil.example", Sec_Fetch_Site="cross-site", Via="1.1 proxy")[0] == 200


def test_a_guesser_knows_when_to_come_back(port: Port) -> None:
    """The address of the connection must wait, regardless of forwarding headers."""
    port.routes.add("/secret", lambda query: 1)
    for number in range(GUESSES):
        guess = {"Authorization": f"Bearer guess-{number}", "X_Forwarded_For": f"10.0.0.{number}"}
        assert port.ask("/secret", **guess)[0] == 401
    status, body, headers = port.ask("/secret", Authorization=f"Bearer {TOKEN}", X_Forwarded_For="10.0.0.99")
    assert (status, headers["Retry-After"], headers["WWW-Authenticate"]) == (429, str(GUESS_MS // 1000), None)
    assert body == f"too many wrong tokens: try again in {GUESS_MS // 1000} seconds\n"
    assert port.ask("/secret")[0] == 200, "local requests without a token are still served"


def test_paths_are_plain_and_have_one_route() -> None:
    routes = RouteTable()
    routes.add("/a/b", lambda query: 1)
    for wrong in ("a", "/a/", "/a?b", "", "/"):
        with pytest.raises(ValueError, match="expected a path"):
            routes.add(wrong, lambda query: 1)
    with pytest.raises(ValueError, match="has a route"):
        routes.add("/a/b", lambda query: 2)


def headers_of(**values: str) -> Message:
    headers = Message()
    for name, value in values.items():
        headers[name.replace("_", "-")] = value
    return headers


@pytest.mark.parametrize(
    ("peer", "headers", "status"),
    [
        ("127.0.0.1", {"Host": "127.0.0.1:9400"}, None),
        ("::1", {"Host": "[::1]:9400"}, None),
        ("::ffff:127.0.0.1", {"Host": "LOCALHOST"}, None),
        ("127.0.0.1", {"Host": "evil.example:9400"}, 403),  # DNS rebinding
        ("127.0.0.1", {}, 403),
        ("127.0.0.1", {"Host": "localhost", "Sec_Fetch_Site": "cross-site"}, 403),
        ("127.0.0.1", {"Host": "localhost", "Sec_Fetch_Site": "same-site"}, 403),  # another port of the same host
        ("127.0.0.1", {"Host": "localhost", "Sec_Fetch_Site": "same-origin"}, None),
        ("127.0.0.1", {"Host": "localhost", "X_Forwarded_For": "192.0.2.1"}, 401),
        ("127.0.0.1", {"Host": "localhost", "Forwarded": "for=192.0.2.1"}, 401),
        ("127.0.0.1", {"Host": "localhost", "X_Real_IP": "127.0.0.1"}, 401),
        ("127.0.0.1", {"Host": "localhost", "Via": "1.1 proxy"}, 401),
        ("127.0.0.1", {"Host": "evil.example", "Authorization": f"Bearer {TOKEN}"}, None),
        ("192.0.2.1", {"Host": "127.0.0.1"}, 401),
        ("192.0.2.1", {"Host": "broker", "Authorization": f"bearer {TOKEN}"}, None),
        ("192.0.2.1", {"Host": "broker", "Authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ("192.0.2.1", {"Host": "broker", "Authorization": "Bearer "}, 401),
        ("127.0.0.1", {"Host": "localhost", "Authorization": "Bearer wrong"}, 401),
        ("192.0.2.1", {"Host": "broker", "Authorization": f"Basic {TOKEN}"}, 401),
        ("192.0.2.1", {"Host": "broker", "Authorization": "Bearer t\xf6ken"}, 401),
    ],
)
def test_who_may_read(peer: str, headers: dict[str, str], status: int | None) -> None:
    refusal = HttpAccess(TOKEN, VirtualClock(0)).refusal(peer, headers_of(**headers))
    assert (None if refusal is None else refusal.status) == status


def test_without_a_token_only_this_machine_reads() -> None:
    access = HttpAccess(None, VirtualClock(0))
    assert access.refusal("127.0.0.1", headers_of(Host="localhost")) is None
    for authorization in ("Bearer None", "Bearer", "Bearer "):
        refusal = access.refusal("192.0.2.1", headers_of(Host="broker", Authorization=authorization))
        assert refusal is not None
        assert refusal.status == 401
    refusal = access.refusal("192.0.2.1", headers_of(Host="broker"))
    assert refusal is not None
    assert refusal.status == 403


@pytest.mark.parametrize(
    ("settings", "is_trusted"),
    [
        ({}, True),
        ({"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}, False),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}, False),
        ({"listeners": "SSL://127.0.0.1:0", "ssl.client.auth": "required"}, False),
        ({"listeners": "SSL://127.0.0.1:0"}, True),
        ({"listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:1"}, True),
    ],
)
def test_a_broker_that_knows_its_clients_asks_this_machine_too(settings: dict[str, str], is_trusted: bool) -> None:
    """With authentication or an authorizer, local programs need the token, as the Kafka protocol needs credentials."""
    clock, local = VirtualClock(0), headers_of(Host="localhost")
    refusal = HttpAccess.configured(BrokerConfig(settings), clock).refusal("127.0.0.1", local)
    assert (refusal is None) == is_trusted
    assert refusal is None or (refusal.status, "kbroker.console.token" in refusal.sentence) == (403, True)
    with_token = HttpAccess.configured(BrokerConfig({**settings, "kbroker.console.token": TOKEN}), clock)
    refusal = with_token.refusal("127.0.0.1", local)
    assert (None if refusal is None else refusal.status) == (None if is_trusted else 401)
    assert with_token.refusal("127.0.0.1", headers_of(Host="localhost", Authorization=f"Bearer {TOKEN}")) is None


def test_guesses_are_logged_without_the_token_and_not_each(caplog: pytest.LogCaptureFixture) -> None:
    """Guesses from many addresses, most of which do not have to wait, are logged at a limited rate."""
    clock = VirtualClock(1_700_000_000_000)
    access = HttpAccess(TOKEN, clock)
    with caplog.at_level("INFO"):
        for number in range(1000):
            refusal = access.refusal(f"192.0.2.{number % 250}", headers_of(Authorization=f"Bearer guess-{number}"))
            assert refusal is not None
    assert 0 < len(caplog.records) <= 10
    assert "guess" not in caplog.text
    assert TOKEN not in caplog.text


LOCAL = ["127.0.0.1", "[::1]", "localhost", "localhost:1", "10.0.0.1:80", "[fe80::1]:9400"]
OTHER = ["", "evil", "127.0.0.1.evil.example", "[::1", "[::1]x", "localhost:x", "localhost.evil", "127.0.0.1:80:80"]


@pytest.mark.parametrize("name", [*LOCAL, *OTHER])
def test_names_that_dns_cannot_point_here(name: str) -> None:
    assert is_local_name(name) is (name in LOCAL)


def test_loopback_addresses() -> None:
    assert all(is_loopback(peer) for peer in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"))
    assert not any(
        is_loopback(peer) for peer in ("10.0.0.1", "::", "0.0.0.0", "fe80::1%eth0", "", "x", "::ffff:8.8.8.8")
    )


def test_a_token_that_cannot_be_sent_or_is_short_is_refused() -> None:
    BrokerConfig({"kbroker.console.token": "0123456789abcdef"})
    for wrong in ("my-secret", "0123456789 abcdef", "0123456789abcdé\xe9"):
        with pytest.raises(ConfigError, match=r"kbroker\.console\.token") as caught:
            BrokerConfig({"kbroker.console.token": wrong})
        assert wrong not in caught.value.explain()
