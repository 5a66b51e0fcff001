"""System calls that fail under the metadata log: a refused change has no effect, and every change has one outcome."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.test_metadata_disk import BROKER, STORAGE, TOPIC, Administrator, produce, record_count
from tests.support import wire
from tests.support.broker import BrokerProcess, wait_for
from tests.support.disk_calls import DiskCalls
from tests.support.wire import Closed

LOG = "__cluster_metadata-0"

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path: Path) -> DiskCalls:
    return DiskCalls(tmp_path, tmp_path)


@pytest.fixture
def broker(disk: DiskCalls, start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return start_broker(wrapper=disk.wrapper, log__flush__interval__messages="1")


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Administrator]:
    made = Administrator(broker)
    yield made
    made.raw.close()


CHANGES: dict[str, Callable[[Administrator], tuple[int, str | None]]] = {
    "CreateTopics": lambda client: client.create("new"),
    "DeleteTopics": lambda client: client.delete("there"),
    "CreatePartitions": lambda client: client.grow("there", 3),
    "IncrementalAlterConfigs": lambda client: client.configure(TOPIC, "there", "retention.ms", "7"),
    "IncrementalAlterConfigs of brokers": lambda client: client.configure(BROKER, "", "log.retention.ms", "7"),
    "AlterClientQuotas": lambda client: client.set_quota("u", 1.0),
    "AlterUserScramCredentials": lambda client: client.add_user("u"),
}


def state(client: Administrator) -> object:
    """Return the topics, the configs of a topic and of a broker, the quotas and the users."""
    configs = [
        sorted((row["Name"], row["Value"]) for row in result["Configs"])
        for result in client.raw.call(32, 4, CONFIGS)["Results"]
    ]
    quotas = client.raw.call(48, 1, {"Components": [], "Strict": False})["Entries"]
    users = client.raw.call(50, 0, {"Users": None})["Results"]
    return client.topics(), configs, quotas, users


CONFIGS = {
    "Resources": [
        {"ResourceType": TOPIC, "ResourceName": "there", "ConfigurationKeys": ["retention.ms"]},
        {"ResourceType": BROKER, "ResourceName": "1", "ConfigurationKeys": ["log.retention.ms"]},
    ],
    "IncludeSynonyms": False,
    "IncludeDocumentation": False,
}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_write_that_fails_refuses_the_change(
    disk: DiskCalls, broker: BrokerProcess, client: Administrator, number: int
) -> None:
    """A failed write refuses every change without effect, even after a kill; later the changes succeed."""
    assert client.create("there") == (0, None)
    assert produce(broker, "there") == wire.Produced(0, 0)
    before = state(client)
    disk.fail(number, "write", part=LOG)
    for name, change in CHANGES.items():
        code, text = change(client)
        assert (name, code, text) == (name, STORAGE, "Cannot write the metadata log: The log cannot be written")
    assert state(client) == before
    broker.kill()
    disk.repair()
    broker.start()
    client = Administrator(broker)
    assert state(client) == before
    assert record_count(broker, "there") == (0, 1)
    disk.fail(number, "write", part=LOG)
    assert client.create("new")[0] == STORAGE
    disk.repair()
    for name, change in CHANGES.items():
        if name != "DeleteTopics":
            assert (name, *change(client)) == (name, 0, None)
    assert client.delete("there") == (0, None)
    client.raw.close()
    assert broker.stop() == 0
    assert "Traceback" not in "".join(broker.output)


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_sync_that_fails_stops_the_broker(
    disk: DiskCalls, broker: BrokerProcess, client: Administrator, name: str, soak: bool
) -> None:
    """A failed sync ends the broker without a response; after the next starts the change has one outcome."""
    assert client.create("there") == (0, None)
    assert client.create("idle") == (0, None)
    for topic in ("there", "idle"):
        for number in range(3):
            assert produce(broker, topic) == wire.Produced(0, number)
    before = client.topics()
    disk.fail(errno.EIO, "sync", part=LOG)
    with pytest.raises(Closed):
        CHANGES[name](client)
    wait_for("the broker ends", lambda: not broker.is_alive())
    assert broker.process is not None
    assert broker.process.wait(60) == 1
    output = "".join(broker.output)
    assert "kbroker: the metadata log cannot be synced: [Errno 5] Input/output error" in output
    assert "it is unknown whether the last change is stored, so the broker stops: repair the disk" in output
    assert "Traceback" not in output
    disk.repair()
    broker.start()
    client = Administrator(broker)
    after = client.topics()
    assert record_count(broker, "idle") == (0, 3)
    if name == "DeleteTopics":
        assert after in (before, {"idle": 1})
    if "there" in after:
        assert record_count(broker, "there") == (0, 3)
        assert produce(broker, "there") == wire.Produced(0, 3)
    client.raw.close()
    for _ in range(2 if soak else 1):
        assert broker.stop() == 0
        broker.start()
        again = Administrator(broker)
        assert again.topics() == after
        again.raw.close()


def test_no_record_is_acknowledged_by_a_topic_of_unknown_fate(
    disk: DiskCalls, broker: BrokerProcess, client: Administrator
) -> None:
    """After a failed deletion the topic accepts no records, which would be lost if the deletion was stored."""
    assert client.create("there") == (0, None)
    assert produce(broker, "there") == wire.Produced(0, 0)
    disk.fail(errno.EIO, "sync", part=LOG)
    ended, late = threading.Event(), []

    def send() -> None:
        while True:
            is_late = ended.is_set()
            try:
                response = produce(broker, "there")
            except (Closed, OSError):
                return
            if is_late and response.error_code == 0:
                late.append(response)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(Closed):
        client.delete("there")
    ended.set()
    sender.join(20)
    assert not sender.is_alive()
    assert late == []


def test_a_write_that_cannot_be_undone_stops_the_broker(
    disk: DiskCalls, broker: BrokerProcess, client: Administrator
) -> None:
    """A failed write that cannot be truncated ends the broker without a response."""
    assert client.create("there") == (0, None)
    disk.fail(errno.EIO, "write", "sync", "truncate", part=LOG)
    with pytest.raises(Closed):
        client.create("new")
    wait_for("the broker ends", lambda: not broker.is_alive())
    assert broker.process is not None
    assert broker.process.wait(60) == 1
    assert "kbroker: the metadata log cannot be written: [Errno 5] Input/output error" in "".join(broker.output)
    disk.repair()
    broker.start()
    again = Administrator(broker)
    assert again.topics() == {"there": 1}
    again.raw.close()
