"""The receiver of pushes: compression, the log, the endpoint, and the removal of expired clients."""

import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast
from uuid import UUID

import lz4.frame
import pytest
import snappy
import zstandard
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors
from kbroker.log.scheduler import Scheduler
from kbroker.metadata.configs.config_entries import broker_entries
from kbroker.metrics.registry import Metrics
from kbroker.network.connections.closed_connections import ClosedConnections
from kbroker.telemetry import push_log
from kbroker.telemetry.manager import Client
from kbroker.telemetry.series import Value
from kbroker.telemetry.service import TelemetryService
from tests.support.errors import error_of
from tests.support.metadata import MemoryController
from tests.support.telemetry import DELTA, counter, gauges

SAME = UUID(int=7)
CODECS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: gzip.compress,
    2: snappy.compress,
    3: lz4.frame.compress,
    4: lambda data: zstandard.compress(data),
}
CLIENT = Client({"client_id": "c", "client_source_address": "10.0.0.7"}, "User:alice", "p-0-1", lambda: False)


class Rig:
    def __init__(self, folder: Path, **settings: object) -> None:
        self.clock = VirtualClock()
        self.scheduler = Scheduler(self.clock)
        self.folder = folder
        values = {"kbroker.telemetry.log.dir": str(folder), **settings}
        self.controller = MemoryController()
        self.closed = ClosedConnections()
        metrics = Metrics(clock=self.clock)
        self.service = TelemetryService(
            BrokerConfig(values), self.clock, self.controller, metrics, self.scheduler, self.closed
        )

    def push(self, data: bytes, codec: int = 0, *, is_last: bool = False, sender: Client = CLIENT) -> Errors:
        """Push as a client after its interval."""
        manager = self.service.manager
        self.clock.advance_ms(300_000)
        granted = manager.get_subscription(SAME, CLIENT)
        return error_of(manager.push, SAME, granted.subscription_id, is_last, codec, data, sender)

    def logged(self) -> list[dict[str, object]]:
        return [json.loads(line) for file in sorted(self.folder.iterdir()) for line in file.read_text().splitlines()]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "log")
    yield made
    made.service.close(5)


def test_nothing_refers_to_a_closed_service(tmp_path: Path) -> None:
    """After a node of an embedded cluster stops, no controller keeps its clients and their values."""
    rig = Rig(tmp_path)
    assert rig.controller.publishers == [rig.service.manager]
    rig.service.close(5)
    assert rig.controller.publishers == []


def test_a_connection_that_was_closed_before_its_request_is_not_watched(rig: Rig) -> None:
    """No event would end the watch."""
    rig.service.manager.get_subscription(UUID(int=0), CLIENT)
    assert rig.closed.signal.watched == 1
    rig.service.manager.get_subscription(UUID(int=0), CLIENT._replace(connection_id="p-0-2", is_closed=lambda: True))
    assert rig.closed.signal.watched == 1


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(rig: Rig, codec: int) -> None:
    """Each codec is decompressed, and invalid data is refused."""
    packed = CODECS[codec](gauges({"a": 1.5}).SerializeToString())
    assert rig.push(packed, codec) is Errors.NONE
    assert rig.service.series.of(SAME) == {("a", ()): Value(1.5, False)}
    assert rig.push(b"\xff" * 20, codec) is Errors.INVALID_RECORD


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_data_that_grows(tmp_path: Path, codec: int) -> None:
    """The limit for compressed data also applies to decompressed data."""
    rig = Rig(tmp_path, **{"telemetry.max.bytes": 5000})
    packed = CODECS[codec](bytes([0x7A, 0x88, 0x27]) + bytes(5000))
    assert len(packed) < 5000
    assert rig.push(packed, codec) is Errors.INVALID_RECORD
    assert rig.logged() == []
    rig.service.close(5)


def test_counters_add_up(rig: Rig) -> None:
    """The log has the deltas, and the latest values have the total."""
    for value in (3, 4):
        assert rig.push(counter("n", value, DELTA).SerializeToString()) is Errors.NONE
    assert rig.service.series.of(SAME) == {("n", ()): Value(7, True)}
    assert [record["metrics"] for record in rig.logged()] == [
        [{"name": "n", "attributes": {}, "value": value, "delta": True}] for value in (3, 4)
    ]


def test_the_line_of_a_push(rig: Rig) -> None:
    """A line of the log has the sender, the interval, and the terminating flag."""
    assert rig.push(gauges({"a": 1}).SerializeToString(), is_last=True) is Errors.NONE
    (record,) = rig.logged()
    del record["metrics"]
    assert record == {
        "version": 1, "time": rig.clock.wall_ms(), "broker": 1, "clientInstanceId": "AAAAAAAAAAAAAAAAAAAABw",
        "clientId": "c", "principal": "User:alice", "address": "10.0.0.7", "softwareName": None,
        "softwareVersion": None, "intervalMs": 300_000, "terminating": True,
    }  # fmt: skip


def test_a_line_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value repeats the attributes of its resource: the line of a small push could have hundreds of megabytes."""
    monkeypatch.setattr(push_log, "MAX_CHARACTERS", 30)
    message = gauges({"a": 1, "b": 2, "c": 3}, resource="r")  # 13 characters each
    assert rig.push(message.SerializeToString()) is Errors.NONE
    values = cast(list[dict[str, object]], rig.logged()[0]["metrics"])
    assert [value["name"] for value in values] == ["a", "b"]


def test_an_expired_client_leaves_no_values(rig: Rig) -> None:
    """The scheduler's sweep removes an expired client with its values."""
    assert rig.push(gauges({"a": 1}).SerializeToString()) is Errors.NONE
    rig.clock.advance_ms(900_001)
    rig.scheduler.run_due()
    assert rig.service.manager.instances == []
    assert rig.service.series.figures.series == 0


def test_a_folder_that_is_deleted_is_made_again(rig: Rig) -> None:
    """A push is accepted even if it cannot be logged, and a missing folder is created again."""
    assert rig.push(gauges({"a": 1}).SerializeToString()) is Errors.NONE
    for file in rig.folder.iterdir():
        file.unlink()
    rig.folder.rmdir()
    rig.folder.touch()  # the folder cannot be created
    assert rig.push(gauges({"a": 2}).SerializeToString()) is Errors.NONE
    assert rig.service.log is not None
    assert (rig.service.log.written, rig.service.log.dropped) == (1, 1)
    os.unlink(rig.folder)
    assert rig.push(gauges({"a": 3}).SerializeToString()) is Errors.NONE
    assert len(rig.logged()) == 1


def test_an_endpoint_gets_the_client_with_its_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint gets the attributes of the client and the values as pushed."""
    rig = Rig(tmp_path, **{"kbroker.telemetry.otlp.endpoint": "http://127.0.0.1:1"})
    sent: list[bytes] = []
    assert rig.service.forwarder is not None
    monkeypatch.setattr(rig.service.forwarder, "put", sent.append)
    message = gauges({"a": 1})
    assert rig.push(CODECS[4](message.SerializeToString()), 4) is Errors.NONE
    (found,) = MetricsData.FromString(sent[0]).resource_metrics
    attributes = {one.key: one.value.string_value for one in found.resource.attributes}
    assert attributes["client_id"] == "c"
    assert attributes["principal"] == "User:alice"
    assert attributes["client_instance_id"] == "AAAAAAAAAAAAAAAAAAAABw"
    assert found.scope_metrics == message.resource_metrics[0].scope_metrics
    forger = CLIENT._replace(principal="User:mallory")
    assert rig.push(message.SerializeToString(), sender=forger) is Errors.NONE
    (found,) = MetricsData.FromString(sent[1]).resource_metrics
    assert [one.value.string_value for one in found.resource.attributes if one.key == "principal"] == ["User:mallory"]
    assert [record["principal"] for record in rig.logged()] == ["User:alice", "User:mallory"]
    rig.service.close(5)


def test_a_client_without_an_id_cannot_forge_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client id of a request may be null; an attribute of this name is then removed."""
    rig = Rig(tmp_path, **{"kbroker.telemetry.otlp.endpoint": "http://127.0.0.1:1"})
    sent: list[bytes] = []
    assert rig.service.forwarder is not None
    monkeypatch.setattr(rig.service.forwarder, "put", sent.append)
    message = gauges({"a": 1})
    message.resource_metrics[0].resource.attributes.add(key="client_id").value.string_value = "forged"
    nameless = CLIENT._replace(facts={**CLIENT.facts, "client_id": None})
    assert rig.push(message.SerializeToString(), sender=nameless) is Errors.NONE
    (found,) = MetricsData.FromString(sent[0]).resource_metrics
    assert "client_id" not in {one.key for one in found.resource.attributes}
    rig.service.close(5)


def test_each_resource_gets_a_short_client_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Untruncated, a client id of 32,767 characters in each of 10,000 empty resources would be 330 MB."""
    rig = Rig(tmp_path, **{"kbroker.telemetry.otlp.endpoint": "http://127.0.0.1:1"})
    sent: list[bytes] = []
    assert rig.service.forwarder is not None
    monkeypatch.setattr(rig.service.forwarder, "put", sent.append)
    monkeypatch.setitem(cast(dict[str, str], CLIENT.facts), "client_id", "c" * 32_767)
    assert rig.push(gauges({}).SerializeToString()) is Errors.NONE
    (found,) = MetricsData.FromString(sent[0]).resource_metrics
    assert {len(one.value.string_value) for one in found.resource.attributes if one.key == "client_id"} == {256}
    rig.service.close(5)


def test_an_endpoint_is_not_described() -> None:
    """DescribeConfigs does not show the endpoint, whose query may have a secret."""
    name = "kbroker.telemetry.otlp.endpoint"
    (entry,) = broker_entries(BrokerConfig({name: "http://collector/?key=secret"}), None, {name})
    assert (entry["IsSensitive"], entry["Value"]) == (True, None)
    assert "secret" not in str(entry)
