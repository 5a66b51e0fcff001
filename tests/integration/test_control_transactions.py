"""Transactions over the control port: states, committed records and delayed markers."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from kbroker.testing import ControlServer, VirtualBroker, control_routes

Json = dict[str, Any]


class Port:
    """Control port of a broker with one topic of two partitions, as another language uses it."""

    def __init__(self, broker: VirtualBroker, control: ControlServer) -> None:
        self.broker = broker
        self._url, self._token = control.url, control.token

    def __call__(self, method: str, path: str, body: Json | None = None, status: int = 200) -> Any:
        """Return the decoded response, which must have the given status."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}/{path}", data, {"Authorization": f"Bearer {self._token}"})
        request.method = method
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                found, raw = response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                found, raw = error.code, error.read()
        assert found == status, raw
        return json.loads(raw)

    def producer(self, name: str) -> Producer:
        settings = {"bootstrap.servers": self.broker.bootstrap_servers, "transactional.id": name, "log_level": 0}
        made = Producer(settings)
        made.init_transactions(20)
        return made

    def states(self) -> dict[str, str]:
        return {one["transactional_id"]: one["state"] for one in self("GET", "transactions")["transactions"]}


@pytest.fixture
def port() -> Iterator[Port]:
    with VirtualBroker(snapshots=True) as broker, ControlServer(broker) as control:
        broker.create_topic("invoices", 2)
        yield Port(broker, control)


def values(records: Json) -> list[bytes]:
    return [base64.b64decode(one["value"]) for one in records["records"]]


def test_states_and_committed_records(port: Port) -> None:
    """The states of transactions are listed; `committed-records` omits records of open and aborted transactions."""
    assert port.states() == {}
    for name in ("open", "committed", "aborted"):
        producer = port.producer(name)
        producer.begin_transaction()
        producer.produce("invoices", name.encode(), key=b"\xff", headers={"h": b"\0"}, partition=0)
        assert producer.flush(20) == 0
        if name != "open":
            {"committed": producer.commit_transaction, "aborted": producer.abort_transaction}[name](20)
    assert port.states() == {"open": "Ongoing", "committed": "CompleteCommit", "aborted": "CompleteAbort"}
    assert sorted(values(port("GET", "topics/invoices/records"))) == [b"aborted", b"committed", b"open"]
    assert values(port("GET", "topics/invoices/committed-records")) == [], "behind the open transaction"
    for _ in range(7):
        port("POST", "clock/advance", {"ms": 10_000})
    assert port.states()["open"] == "CompleteAbort"
    (record,) = port("GET", "topics/invoices/committed-records")["records"]
    assert record.pop("timestamp_ms") > 0
    assert record == {
        "partition": 0, "offset": 1, "key": base64.b64encode(b"\xff").decode(),
        "value": base64.b64encode(b"committed").decode(),
        "headers": [{"key": "h", "value": base64.b64encode(b"\0").decode()}],
    }  # fmt: skip
    assert port("GET", "topics/none/records", status=404)["error"] == "topic none does not exist"
    assert port("GET", "topics/none/committed-records", status=404)["error"] == "topic none does not exist"


def commit(port: Port, name: str = "tx") -> None:
    producer = port.producer(name)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce("invoices", b"v", partition=partition)
    producer.commit_transaction(20)


def test_markers_that_come_late(port: Port) -> None:
    """Markers are held from the POST to the DELETE, and written when the broker retries."""
    held = port("POST", "held-markers", {"topic": "invoices"})["id"]
    commit(port)
    assert port.states() == {"tx": "PrepareCommit"}
    assert values(port("GET", "topics/invoices/committed-records")) == []
    places = [{"topic": "invoices", "partition": partition} for partition in range(2)]
    shown = {"id": held, "topic": "invoices", "active": True, "partitions": places}
    assert port("GET", "held-markers") == {"held_markers": [shown]}
    assert port("DELETE", f"held-markers/{held}") == {"removed": 1}
    assert port("GET", "held-markers") == {"held_markers": []}
    port("POST", "clock/advance", {"ms": 5_000})
    assert port.states() == {"tx": "CompleteCommit"}
    assert values(port("GET", "topics/invoices/committed-records")) == [b"v", b"v"]


def test_the_later_one_of_two_counts(port: Port) -> None:
    """The later of two holds is active; markers are released by its removal, not by that of the other."""
    first, second = (port("POST", "held-markers", body)["id"] for body in ({"topic": "other"}, {}))
    shown = port("GET", "held-markers")["held_markers"]
    assert [(one["id"], one["topic"], one["active"]) for one in shown] == [
        (first, "other", False), (second, None, True),
    ]  # fmt: skip
    port("DELETE", f"held-markers/{first}")
    commit(port)
    assert port.states() == {"tx": "PrepareCommit"}
    assert port("DELETE", "held-markers") == {"removed": 1}
    port("POST", "clock/advance", {"ms": 5_000})
    assert port.states() == {"tx": "CompleteCommit"}


def test_a_broker_that_goes_back_holds_none(port: Port) -> None:
    """A snapshot and a restore, which restart the broker, remove the holds."""
    for path, body in (("snapshots", None), ("snapshots/1/restore", None)):
        port("POST", "held-markers", {})
        port("POST", path, body)
        assert port("GET", "held-markers") == {"held_markers": []}
    commit(port)
    assert port.states() == {"tx": "CompleteCommit"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("POST", "held-markers", {"topic": 5}, 400, "topic must be a text"),
        ("POST", "held-markers", {"topics": []}, 400, "unknown field 'topics'"),
        ("DELETE", "held-markers/7", None, 404, "there are no held markers 7"),
        ("DELETE", "held-markers/x", None, 404, "there are no held markers x"),
        ("POST", "transactions", {}, 405, "transactions takes GET"),
        ("PUT", "topics/invoices/records", {}, 501, "PUT"),
    ],
)
def test_wrong_requests(port: Port, method: str, path: str, body: Json | None, status: int, error: str) -> None:
    """A wrong request is refused with its status and an error message."""
    assert error in port(method, path, body, status)["error"]


def test_too_many_records(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """A response with more records than the limit is refused."""
    monkeypatch.setattr(control_routes, "MOST_RECORDS", 1)
    commit(port)
    assert "more than 1 records" in port("GET", "topics/invoices/records", status=409)["error"]
