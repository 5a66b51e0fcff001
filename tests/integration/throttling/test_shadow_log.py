"""Shadow quotas in the request log of a running broker: their verdicts are listed separately."""

import json
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.quotas import QuotaClient
from kbroker.common.quotas import IP, USER, QuotaEntity
from kbroker.quota.entity_rules import Alteration, QuotaOp
from kbroker.testing import EmbeddedBroker, VirtualBroker
from kbroker.testing.waiting import wait_until
from tests.support.client import Client, new_topics
from tests.support.throttling import MUTATION, PRODUCE, REQUEST, SETTINGS
from tests.support.wire import Connection, create_topic

Record = dict[str, Any]


def records(broker: EmbeddedBroker, folder: Path) -> list[Record]:
    broker.request_log.flush()
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def of_client(broker: EmbeddedBroker, folder: Path, count: int) -> list[Record]:
    """Return the records of the client when there are at least `count`."""
    found: list[Record] = []

    def enough() -> bool:
        found[:] = [r for r in records(broker, folder) if r.get("requestHeader", {}).get("clientId") == "client"]
        return len(found) >= count

    wait_until(enough)
    return found


def test_both_are_in_a_record_apart(tmp_path: Path) -> None:
    """A record lists enforced and shadow verdicts separately; only the enforced sensor has an update."""
    settings = {**SETTINGS, "kbroker.request.log.dir": str(tmp_path), "kbroker.request.log.sampling": "0"}
    with VirtualBroker(settings) as broker, Connection(broker.bootstrap_servers) as admin:
        admin.ask(create_topic("t", 1))
        broker.context.quotas.update("ANONYMOUS", None, PRODUCE, 1000)
        broker.context.quotas.update(None, "client", f"shadow.{PRODUCE}", 500)
        broker.context.quotas.update(None, "client", f"shadow.{MUTATION}", 1)
        with Client(broker.bootstrap_servers) as client:
            # exceeds the quota without a verdict, and so without a record
            client.call("CreateTopics", 6, new_topics("many", partitions=30))
            response = client.call("CreateTopics", 6, new_topics("m", partitions=30))
            assert (response["ThrottleTimeMs"], response["Topics"][0]["ErrorCode"]) == (0, 0)
            size = client.produce("t", 12_000)
            delay_ms = client.end()["ThrottleTimeMs"]
            mutation, produce = of_client(broker, tmp_path, 2)
            assert {v.delay_served_ms for v in broker.verdicts if v.is_shadow} == {
                one["quota"]["shadowVerdicts"][0]["delayServedMs"] for one in (mutation, produce)
            }
    assert (mutation["version"], mutation["sampling"], mutation["throttleTimeMs"]) == (5, 1.0, 0)
    (refused,) = mutation["quota"].pop("shadowVerdicts")
    assert mutation["quota"] == {"verdicts": [], "updates": []}
    assert (refused["quotaType"], refused["refused"], refused["delayServedMs"]) == ("ControllerMutation", True, 19_000)
    (verdict,) = produce["quota"]["verdicts"]
    (shadow,) = produce["quota"]["shadowVerdicts"]
    assert (verdict["level"], verdict["limit"], verdict["delayServedMs"]) == (3, 1000, delay_ms)
    assert (shadow["level"], shadow["limit"], shadow["user"], shadow["clientId"]) == (7, 500, "", "client")
    assert shadow["delayServedMs"] == round((size / 10 - 500) / 500 * 10_000)
    assert [(one["user"], one["value"]) for one in produce["quota"]["updates"]] == [("ANONYMOUS", size)]
    assert produce["throttleTimeMs"] == delay_ms


@pytest.mark.parametrize("enforced", [False, True])
def test_the_time_of_network_threads_is_a_value_of_the_shadow_too(tmp_path: Path, enforced: bool) -> None:
    """The time that a response takes in the network thread updates the shadow sensor, which uses every second sequence
    number.
    """
    with EmbeddedBroker({**SETTINGS, "kbroker.request.log.dir": str(tmp_path)}) as broker:
        broker.context.quotas.update(None, "client", f"shadow.{REQUEST}", 1e-9)
        if enforced:
            broker.context.quotas.update(None, "client", REQUEST, 1e9)
        with Client(broker.bootstrap_servers) as client:
            for _ in range(5):
                assert client.call("ApiVersions", 2, {})["ThrottleTimeMs"] == 0
            found = of_client(broker, tmp_path, 5)
    assert [r["quota"]["shadowVerdicts"][0]["sequence"] for r in found] == [1, 3, 5, 7, 9]
    assert [len(r["quota"]["updates"]) for r in found] == [2 * enforced] * 5


def test_connections_of_an_address(tmp_path: Path) -> None:
    """Connections above a shadow rate are accepted, and the log has the verdicts that would have refused them."""
    with EmbeddedBroker({**SETTINGS, "kbroker.request.log.dir": str(tmp_path)}) as broker:
        alterations = [
            Alteration(QuotaEntity.of({IP: "127.0.0.1"}), [QuotaOp("shadow.connection_creation_rate", 1.0)]),
            Alteration(QuotaEntity.of({USER: "other"}), [QuotaOp("shadow.producer_byte_rate", 1.0)]),
        ]
        assert set(broker.context.quota_entities.alter(alterations).values()) == {None}
        for _ in range(15):
            with Client(broker.bootstrap_servers) as client:
                client.call("ApiVersions", 2, {})
        verdicts = [v for v in broker.verdicts if v.quota_type == "ConnectionRate"]
        assert len(verdicts) >= 3
        assert all(v.is_shadow and v.refused and v.address == "127.0.0.1" for v in verdicts)
        assert broker.context.connection_quotas.throttled == 0
        logged = [r for r in records(broker, tmp_path) if "requestHeader" not in r]
    assert len(logged) == len(verdicts)
    assert all(r["quota"]["verdicts"] == [] and r["address"] == "127.0.0.1" for r in logged)
    assert [r["quota"]["shadowVerdicts"][0]["ip"] for r in logged] == ["127.0.0.1"] * len(logged)


def test_a_restart_keeps_shadows_in_force(tmp_path: Path) -> None:
    """Shadow quotas are kept with their level over a restart; promotion makes them the enforced quotas."""
    settings = {
        **SETTINGS,
        "log.dirs": str(tmp_path),
        "kbroker.in.memory": "false",
        "auto.create.topics.enable": "true",
    }
    alice = QuotaEntity.of({USER: "ANONYMOUS"})
    with EmbeddedBroker(settings) as broker, QuotaClient(broker.bootstrap_servers) as quotas:
        wanted = {PRODUCE: 1e9, f"shadow.{PRODUCE}": 50.0, f"shadow.{REQUEST}": 0.5}
        assert quotas.alter({alice: wanted}) == {alice: None}
        broker.create_topic("t", 1)
    with EmbeddedBroker(settings) as broker, QuotaClient(broker.bootstrap_servers) as quotas:
        assert quotas.of(alice) == wanted
        with Client(broker.bootstrap_servers) as client:
            client.produce("t", 5000)
            assert client.end()["ThrottleTimeMs"] == 0
        found = [(v.is_shadow, v.level, v.limit) for v in broker.verdicts if v.quota_type == "Produce"]
        assert found == [(True, 3, 50.0)]
        assert [one.is_enabled for one in broker.context.quotas.shadows] == [True, False, True, False]
        assert len(quotas.promote_shadows(alice).made) == 4
        assert quotas.of(alice) == {PRODUCE: 50.0, REQUEST: 0.5}
        assert not any(one.is_enabled for one in broker.context.quotas.shadows)
