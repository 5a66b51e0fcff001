"""Schema Registry (Apicurio): records in the formats of Confluent's and Apicurio's serializers."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from kbroker.client.admin import Admin
from kbroker.client.admin import NewTopic as ClientTopic
from kbroker.client.cluster import Cluster
from kbroker.client.producer import Producer
from kbroker.client.schema_registry import RegistryError, SchemaRegistry
from kbroker.decoders.decoded import Decoded, Headers
from kbroker.decoders.decoders import Decoders
from kbroker.metadata.topic_rules import NewTopic
from kbroker.testing import EmbeddedBroker
from tests.clients.programs import HERE, python_with
from tests.support import cli_output
from tests.support.broker import run_to_end
from tests.support.cli import run
from tests.support.console import SETTINGS, ask, pages_of, served, words_of
from tests.support.schema_registry import Apicurio

pytestmark = pytest.mark.slow

POINT = '{"type": "record", "name": "geo.Point", "fields": [{"name": "x", "type": "int"}]}'
LINE = '{"type": "record", "name": "geo.Line", "fields": [{"name": "end", "type": "geo.Point"}]}'
NOTE = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
MONEY = 'syntax = "proto3"; package shop; message Money { int32 cents = 1; }'
ORDER = """syntax = "proto3"; package shop; import "money.proto";
message Other {} message Order { message Line { Money price = 1; } Line line = 1; }"""


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    registry = Apicurio(tmp_path_factory.mktemp("apicurio"))
    yield registry
    registry.close()


@pytest.fixture(scope="module")
def by_confluent(apicurio: Apicurio) -> list[bytes]:
    """Values that registry_producer.py has serialized."""
    program = [python_with("registry"), str(HERE / "registry_producer.py"), apicurio.url]
    return [bytes.fromhex(line) for line in run_to_end(program).split()]


def decoded(url: str, data: bytes, headers: Headers = ()) -> Decoded:
    found = Decoders(registry=SchemaRegistry(url)).record("t", 0, 0, 0, None, data, headers).value
    assert found is not None
    assert not found.problem
    return found


def test_values_of_confluents_serializers(apicurio: Apicurio, by_confluent: list[bytes]) -> None:
    found = [decoded(apicurio.url, data) for data in by_confluent]
    assert [(one.format, one.value) for one in found] == [
        ("avro", {"id": 7, "who": "Zoë"}),
        ("json-schema", {"id": 7, "who": "Zoë"}),
        ("protobuf", "1970-01-01T00:00:01Z"),
        ("protobuf", []),
    ]
    assert [one.schema.partition(",")[0] for one in found] == [
        *("Order", "id 2", "google.protobuf.Timestamp", "google.protobuf.ListValue")
    ]


def test_references(apicurio: Apicurio) -> None:
    """A schema with references to other subjects is resolved, by Confluent's and by Apicurio's API."""
    apicurio.register("geo-point", "AVRO", POINT)
    line = apicurio.register("geo-line", "AVRO", LINE, [{"name": "geo.Point", "subject": "geo-point", "version": 1}])
    apicurio.register("money", "PROTOBUF", MONEY)
    order = apicurio.register("order", "PROTOBUF", ORDER, [{"name": "money.proto", "subject": "money", "version": 1}])
    message = b"\x02\x02\x0a\x04\x0a\x02\x08\x63"
    assert decoded(apicurio.url, b"\0" + line.to_bytes(4, "big") + b"\x0e").value == {"end": {"x": 7}}
    found = decoded(apicurio.url, b"\0" + order.to_bytes(4, "big") + message)
    assert found.value == {"line": {"price": {"cents": 99}}}
    assert found.schema == f"shop.Order, id {order}"
    artifacts = f"{apicurio.own_url}/groups/default/artifacts"
    line_id, order_id = (
        int(apicurio.request("GET", f"{artifacts}/{name}/meta")["globalId"]).to_bytes(8, "big")
        for name in ("geo-line", "order")
    )
    assert decoded(apicurio.own_url, b"\0" + line_id + b"\x0e").value == {"end": {"x": 7}}
    assert decoded(apicurio.own_url, b"\0" + order_id + message).value == {"line": {"price": {"cents": 99}}}


def test_formats_of_apicurio(apicurio: Apicurio) -> None:
    """Apicurio's formats are decoded: global ids of eight bytes, headers, and names of Protobuf messages."""
    made = {}
    for name, kind, text in (("point", "AVRO", POINT), ("money", "PROTOBUF", MONEY + " message Other {}")):
        headers = {"X_Registry_ArtifactId": name, "X_Registry_ArtifactType": kind, "Content_Type": "application/x"}
        made[name] = apicurio.request("POST", f"{apicurio.own_url}/groups/g/artifacts", text, **headers)
    point, money = (made[name]["globalId"].to_bytes(8, "big") for name in ("point", "money"))
    content = made["money"]["contentId"].to_bytes(8, "big")
    for url in (apicurio.url, apicurio.own_url):
        assert decoded(url, b"\0" + point + b"\x0e").value == {"x": 7}
        assert decoded(url, b"\x0e", [("apicurio.value.globalId", point)]).value == {"x": 7}
        json_encoded = [("apicurio.value.globalId", point), ("apicurio.value.encoding", b"JSON")]
        assert decoded(url, b'{"x": 7}', json_encoded).value == {"x": 7}
        assert decoded(url, b"\0" + money + b"\x0c\x0a\x0ashop.Money\x08\x63").value == {"cents": 99}
        named = [("apicurio.value.contentId", content), ("apicurio.protobuf.type", b"shop.Money")]
        assert decoded(url, b"\x08\x63", named).value == {"cents": 99}
    assert decoded(apicurio.own_url, b"\0" + point[4:] + b"\x0e").value == {"x": 7}


def test_an_unknown_id_is_named(apicurio: Apicurio) -> None:
    found = Decoders(registry=SchemaRegistry(apicurio.url)).record("t", 0, 0, 0, None, b"\0\0\1\0\0a", []).value
    assert found is not None
    assert found.text == "000001000061"
    assert found.problem.startswith(f"schema id 65536: {apicurio.url}: status 404: No content with id")


def test_subjects_and_versions(apicurio: Apicurio) -> None:
    for text in ('"int"', '"long"'):
        number = apicurio.register("ab", "AVRO", text)
    registry = SchemaRegistry(apicurio.own_url)
    assert "ab" in registry.subjects()
    assert registry.versions("ab") == [1, 2]
    latest, first = registry.version("ab"), registry.version("ab", 1)
    assert (latest.version, latest.id, json.loads(latest.schema.text)) == (2, number, "long")
    assert json.loads(first.schema.text) == "int"
    with pytest.raises(RegistryError, match="status 404"):
        registry.versions("nothing")


def test_the_command_line(apicurio: Apicurio, by_confluent: list[bytes]) -> None:
    """The commands decode, check and encode values with the schemas of the registry."""
    with EmbeddedBroker() as broker:
        with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
            Admin(cluster).create_topics([ClientTopic(name, 1) for name in ("orders", "points", "prices", "notes")])
            for value in (*by_confluent[:3], by_confluent[0]):
                producer.send("orders", value, b"k")
        environment = {"KBROKER_BOOTSTRAP": broker.bootstrap_servers, "KBROKER_REGISTRY": apicurio.url}

        def documents(*args: str, status: int = 0) -> list[Any]:
            result = run(None, *args, "--json", env=environment)
            assert result.exit_code == status, result.output
            name = args[0] if args[0] == "consume" else " ".join(args[:2])
            return cli_output.check(name, result.stdout)

        every = ("consume", "orders", "--from-beginning", "--end")
        found = documents(*every, "--decode", "registry")
        order = {"id": 7, "who": "Zoë"}
        assert [one["value"] for one in found] == [order, order, "1970-01-01T00:00:01Z", order]
        assert [one["value_format"] for one in found] == ["avro", "json-schema", "protobuf", "avro"]
        assert found[0]["value_schema"].startswith("Order, id ")
        assert len(documents(*every, "--filter", "value.who == 'Zoë'")) == 3
        (checked,) = documents("registry", "check", "orders")
        assert [(row["part"], row["type"], row["records"]) for row in checked] == [
            *(("key", None, 4), ("value", "avro", 2), ("value", "json-schema", 1), ("value", "protobuf", 1))
        ]
        (listed,) = documents("registry", "list")
        assert "avro-orders-value" in [row["subject"] for row in listed]
        (versions,) = documents("registry", "versions", "avro-orders-value")
        (shown,) = documents("registry", "show", "avro-orders-value", "--version", "1")
        (by_id,) = documents("registry", "show", "--id", str(shown["id"]))
        assert versions == [{"version": 1, "id": shown["id"], "type": "avro"}]
        assert json.loads(shown["schema"])["name"] == json.loads(by_id["schema"])["name"] == "Order"
        with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
            producer.send("orders", b"\0\0\1\0\0x", None)
        documents("registry", "check", "orders", "--from-beginning", status=1)
        for name, kind, schema, text in (
            ("points", "AVRO", POINT, '{"x": 7}'),
            ("prices", "PROTOBUF", MONEY, '{"cents": 99}'),
            ("notes", "JSON", NOTE, '{"a": 1}'),
        ):
            apicurio.register(f"{name}-value", kind, schema)
            run(None, "produce", name, "--encode", "registry", input=text, env=environment)
            (one,) = documents("consume", name, "--from-beginning", "--end", "--decode", "registry")
            assert one["value"] == json.loads(text)
            assert re.search(r"\bid \d+$", one["value_schema"])
        assert '"name": "Order"' in run(None, "registry", "show", "avro-orders-value", env=environment).stdout


def test_messages_of_the_console(apicurio: Apicurio, by_confluent: list[bytes]) -> None:
    """The page of messages detects and names the schema of each value, and filters by decoded values."""
    with served({**SETTINGS, "kbroker.console.registry.url": apicurio.url}) as broker:
        broker.context.topics.create(NewTopic("orders", 1))
        with Cluster(broker.bootstrap_servers) as cluster, Producer(cluster) as producer:
            for value in (*by_confluent[:3], b"\0\0\1\0\0x"):
                producer.send("orders", value, None)
        with pages_of(broker) as pages:
            page = words_of(ask(pages, "messages?topic=orders").body.decode())
            for words in ("avro, Order, id ", "json-schema, id ", "protobuf, google.protobuf.Timestamp, id "):
                assert f"value: {words}" in page
            assert '"who": "Zoë"' in page
            assert "The value is shown as it is: schema id 65536" in page
            query = urlencode({"topic": "orders", "filter": "value.who == 'Zoë'", "vd": "avro"})
            assert "Matches: 1." in words_of(ask(pages, f"messages?{query}").body.decode())
