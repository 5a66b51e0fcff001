"""Client of a broker's HTTP port: requests, responses and errors."""

import socket
from typing import Any, NoReturn

import pytest

from kbroker.client.http_get import HttpFailure, http_get
from kbroker.client.http_port import HttpPort, HttpPortError, NoSuchPathError, url_of_listener
from kbroker.common.http_server import HttpHandler
from tests.support.fixtures import fixture_of
from tests.support.http_bodies import served


class Scripted(HttpHandler):
    """Handler that records the request and sends the (status, body, headers) of the test's script."""

    def do_GET(self) -> None:
        self.request_is_read()
        script: dict[str, object] = self.server.served
        script["path"], script["authorization"] = self.path, self.headers.get("Authorization")
        response: Any = script["response"]
        status, body, headers = response
        self.send_page(status, body, "application/json", headers)


script = fixture_of(lambda: served(Scripted, {"response": (200, b"{}", ())}))


def test_json_of_a_path_with_query_and_token(script: dict[str, object]) -> None:
    script["response"] = (200, b'{"a": [1, "\\u001b"]}', ())
    port = HttpPort(str(script["url"]), "a-token")
    assert port.get("/xray", {"limit": 5, "user": "a b&c"}) == {"a": [1, "\x1b"]}
    assert (script["path"], script["authorization"]) == ("/xray?limit=5&user=a+b%26c", "Bearer a-token")


@pytest.mark.parametrize(
    ("status", "body", "headers", "error", "text"),
    [
        (404, b"there are /metrics\n", (), NoSuchPathError, "404: there are /metrics"),
        (403, b"send it", (), HttpPortError, "403: send it; the commands take it from KBROKER_CONSOLE_TOKEN$"),
        (401, b"a token is needed\n", (), HttpPortError, "401: a token is needed; .* from KBROKER_CONSOLE_TOKEN$"),
        (500, b"\x1b[2Jgone\n\n\x00x", (), HttpPortError, r"500: \[2Jgone x"),
        (302, b"", (("Location", "http://192.0.2.1/steal"),), HttpPortError, "302"),
        (200, b"<html>", (), HttpPortError, "expected JSON"),
    ],
)
def test_a_refusal_is_one_printable_line(
    script: dict[str, object], status: int, body: bytes, headers: object, error: type[Exception], text: str
) -> None:
    script["response"] = (status, body, headers)
    with pytest.raises(error, match=text) as caught:
        HttpPort(str(script["url"])).get("/xray")
    assert str(caught.value).isprintable()


class Cut(HttpHandler):
    """Handler that closes the connection before the end of its response."""

    def do_GET(self) -> None:
        self.request_is_read()
        self.send_response(200)
        self.send_header("Content-Length", "99")
        self.end_headers()
        self.wfile.write(b"syntax")


def test_a_response_without_its_end_is_a_failure() -> None:
    """The beginning of a response, such as that of a schema, is not taken for all of it."""
    with served(Cut, {}) as script:
        host, _, port = script["url"].removeprefix("http://").partition(":")
        with pytest.raises(HttpFailure, match="expected 99 bytes, got 6"):
            http_get("http", host, int(port), "/", {}, timeout_s=5, max_bytes=1000)


def test_a_port_that_nobody_serves() -> None:
    with socket.socket() as bound:  # bound, but not listening
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(HttpPortError, match="Connection refused"):
            HttpPort(f"127.0.0.1:{bound.getsockname()[1]}", timeout_s=5).get("/xray")


@pytest.mark.parametrize(("url", "address"), [("http://[::1]", ("::1", 80)), ("https://[::1]/x", ("::1", 443))])
def test_an_ipv6_address_without_a_port(url: str, address: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port is that of the scheme, and not a part of the address."""
    found: list[object] = []

    def connect(address: object, *args: object) -> NoReturn:
        found.append(address)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(HttpPortError):
        HttpPort(url).get("/xray")
    assert found == [address]


def test_a_host_that_cannot_be_one() -> None:
    with pytest.raises(HttpPortError, match=r"^http://a b: URL can't contain control characters"):
        HttpPort("http://a b").get("/xray")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://u:p@x", "http://x?y", "http://x:99999"])
def test_a_malformed_url(url: str) -> None:
    with pytest.raises(ValueError):
        HttpPort(url).get("/x")


def test_a_malformed_token() -> None:
    with pytest.raises(ValueError, match="ASCII"):
        HttpPort("http://x", "a\r\nb")


@pytest.mark.parametrize(
    ("listener", "broker", "url"),
    [
        ("127.0.0.1:9400", "127.0.0.1", "http://127.0.0.1:9400"),
        ("127.0.0.1:9400", "localhost", "http://127.0.0.1:9400"),
        ("0.0.0.0:9400", "192.0.2.1", "http://192.0.2.1:9400"),
        ("192.0.2.1:9400", "192.0.2.1", "http://192.0.2.1:9400"),
    ],
)
def test_where_the_port_of_a_broker_is(listener: str, broker: str, url: str) -> None:
    """A listener on every interface is reached at the broker's host."""
    assert url_of_listener(listener, broker) == url


@pytest.mark.parametrize("listener", ["127.0.0.1:9400", "localhost:9400", "[::1]:9400"])
@pytest.mark.parametrize("broker", ["192.0.2.1", "broker.invalid"])
def test_a_loopback_port_of_another_machine_is_not_looked_for_on_this_one(listener: str, broker: str) -> None:
    """A service on this machine must not be taken for the remote broker's."""
    with pytest.raises(ValueError, match="is for its own machine: run the command there, or give --http URL"):
        url_of_listener(listener, broker)
