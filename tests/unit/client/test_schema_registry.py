"""Client of a Schema Registry: limits, caches, and both APIs."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.client import schema_registry
from kbroker.client.schema_registry import RegistryError, Schema, SchemaId, SchemaRegistry
from kbroker.common.http_server import HttpHandler
from tests.support.fixtures import fixture_of
from tests.support.http_bodies import served

NUMBER = SchemaId("id", "7")


class Scripted(HttpHandler):
    """Handler that serves the bodies of ``served`` by path, and records the paths and credentials of requests."""

    def do_GET(self) -> None:
        self.request_is_read()
        script: dict[str, Any] = self.server.served
        script["paths"].append(self.path)
        script["authorization"] = self.headers.get("Authorization")
        body = script.get(self.path)
        status = 404 if body is None else 200
        found = {"error_code": 40403, "message": "Schema\n not \u001bfound"} if body is None else body
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_page(status, data, "application/json", ())


script = fixture_of(lambda: served(Scripted, {"paths": []}))


def test_a_schema_with_references(script: dict[str, Any]) -> None:
    """References precede the schemas that use them, each once, and the schema is fetched once."""
    first, second = ({"name": n, "subject": f"{n}/x", "version": 2} for n in ("a", "b"))
    script["/r/schemas/ids/7"] = {"schema": "top", "schemaType": "PROTOBUF", "references": [first, second]}
    script["/r/subjects/a%2Fx/versions/2"] = {"schema": "A", "references": [second]}
    script["/r/subjects/b%2Fx/versions/2"] = {"schema": "B", "references": [first]}
    registry = SchemaRegistry(script["url"].replace("//", "//user:p%40ss@") + "/r/")
    wanted = Schema("protobuf", "top", (("b", "B"), ("a", "A")))
    assert [registry.schema(NUMBER), registry.schema(NUMBER)] == [wanted, wanted]
    assert len(script["paths"]) == 3
    assert script["authorization"] == "Basic dXNlcjpwQHNz"
    assert registry.url == script["url"] + "/r"


def test_a_failure_is_kept_for_a_while(script: dict[str, Any]) -> None:
    clock = VirtualClock()
    registry = SchemaRegistry(script["url"], clock=lambda: clock.now_ms() / 1000)
    for _ in range(3):
        with pytest.raises(RegistryError, match=r"status 404: Schema not found$") as caught:
            registry.schema(NUMBER)
        assert caught.value.status == 404
    assert script["paths"] == ["/schemas/ids/7"]
    script["/schemas/ids/7"] = {"schema": '"int"'}
    clock.advance_ms(int(schema_registry.FAILURE_KEPT_S * 1000) + 1)
    assert registry.schema(NUMBER) == Schema("avro", '"int"')


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>", "expected a JSON dict, got something else: is it a registry"),
        ([1], "expected a JSON dict"),
        ({"schema": 7}, "expected a schema"),
        ({"schema": "x", "schemaType": "XML"}, "expected a schema of AVRO, PROTOBUF, JSON, got 'XML'"),
        (b"[" * 100_000, "expected a JSON"),
        (b" " * (schema_registry.MAX_BYTES + 1), "expected at most 4194304 bytes, got more"),
        ({"schema": "x", "references": [{"name": n, "subject": "s", "version": 1} for n in range(101)]}, "100 ref"),
        ({"schema": "x", "references": ["x"]}, "expected a list of objects as references"),
        ({"schema": "x", "references": {"name": "x"}}, "expected a list of objects as references"),
    ],
)
def test_documents_that_are_not_schemas(script: dict[str, Any], body: Any, reason: str) -> None:
    script["/schemas/ids/7"] = body
    script["/subjects/s/versions/1"] = {"schema": "s"}
    with pytest.raises(RegistryError, match=reason):
        SchemaRegistry(script["url"]).schema(NUMBER)


@pytest.mark.parametrize("number", [-1, 1 << 32])
def test_an_id_that_does_not_fit_the_wire_format(script: dict[str, Any], number: int) -> None:
    script["/subjects/s/versions/latest"] = {"version": 1, "id": number, "schema": "x"}
    with pytest.raises(RegistryError, match="expected a version of a subject"):
        SchemaRegistry(script["url"]).version("s")


def test_names_that_are_not_text(script: dict[str, Any]) -> None:
    """An argument of a command line, or a reference of a schema, need not be UTF-8."""
    script["/schemas/ids/7"] = {"schema": "x", "references": [{"name": "n", "subject": "\udcff", "version": 1}]}
    registry = SchemaRegistry(script["url"])
    with pytest.raises(RegistryError, match="status 404"):
        registry.versions("\udcff")
    with pytest.raises(RegistryError, match="status 404"):
        registry.schema(NUMBER)


@pytest.mark.parametrize("version", [None, "1", 1.5, [], True])
def test_versions_that_are_not_numbers(script: dict[str, Any], version: object) -> None:
    script["/subjects/s/versions"] = [1, version]
    with pytest.raises(RegistryError, match="expected the versions of a subject, got another document"):
        SchemaRegistry(script["url"]).versions("s")


def test_only_so_many_schemas_are_kept(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "MAX_SCHEMAS", 2)
    registry = SchemaRegistry(script["url"])
    for number in (1, 2, 1, 3, 1, 2):
        script[f"/schemas/ids/{number}"] = {"schema": f'"{number}"'}
        assert registry.schema(SchemaId("id", str(number))).text == f'"{number}"'
    assert [path[-1] for path in script["paths"]] == ["1", "2", "3", "2"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('"string"', "avro"),
        ('["null", "int"]', "avro"),
        ('{"type": "record", "name": "R", "fields": []}', "avro"),
        ('{"type": "object"}', "json-schema"),
        ('{"$schema": "x", "type": "string"}', "json-schema"),
        ("true", "json-schema"),
        ('syntax = "proto3";', "protobuf"),
    ],
)
def test_the_kind_of_a_schema_that_apicurio_does_not_report(script: dict[str, Any], text: str, kind: str) -> None:
    script["/apis/registry/v3/ids/contentIds/7"] = text.encode()
    script["/apis/registry/v3/ids/contentIds/7/references"] = []
    assert SchemaRegistry(script["url"] + "/apis/registry/v3").schema(NUMBER) == Schema(kind, text)


@contextmanager
def silent(header: bytes = b"") -> Iterator[tuple[str, list[int]]]:
    """Serve a registry that sends a header every 50 ms or nothing; yield its URL and a list of connections."""
    connections = list[int]()
    is_over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not is_over.wait(0.05):
                connection.sendall(header)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(1)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", connections
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("header", [b"", b"X: y\r\n"])
def test_a_response_that_trickles_ends_in_time(header: bytes) -> None:
    with silent(header) as (url, _):
        started = time.monotonic()
        with pytest.raises(RegistryError, match=r"no response within 0\.2 s"):
            SchemaRegistry(url, timeout_s=0.2).schema(NUMBER)
        assert time.monotonic() - started < 2


def test_a_silent_registry_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "SILENCE_S", 0.1)
    with silent() as (url, connections):
        registry = SchemaRegistry(url, timeout_s=0.2)
        for number in range(5):
            with pytest.raises(RegistryError, match="no response within"):
                registry.within(3).schema(SchemaId("id", str(number)))
            with pytest.raises(RegistryError, match="no response within"):
                registry.within(3).version("s")
        assert len(connections) == 1


def test_a_caller_waits_only_so_long(script: dict[str, Any]) -> None:
    """Cached schemas need no time, and a request without time left is not cached as a failure."""
    clock = VirtualClock()
    registry = SchemaRegistry(script["url"], clock=lambda: clock.now_ms() / 1000)
    script["/schemas/ids/7"] = {"schema": '"int"'}
    script["/schemas/ids/8"] = {"schema": '"long"'}
    hurried = registry.within(3)
    assert hurried.schema(NUMBER).text == '"int"'
    clock.advance_ms(3000)
    assert hurried.schema(NUMBER).text == '"int"'
    with pytest.raises(RegistryError, match="the time for its responses is over"):
        hurried.schema(SchemaId("id", "8"))
    assert registry.schema(SchemaId("id", "8")).text == '"long"'


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "http://host?x=1", "http://u:secret@host#x", "http://u:@secret@host?x"]
)
def test_malformed_urls(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected http\(s\)://HOST:PORT") as caught:
        SchemaRegistry(url)
    assert "secret" not in str(caught.value)
