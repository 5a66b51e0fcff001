"""Changes of metadata on a disk that is full or read-only."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import need, wire
from tests.support.broker import BrokerProcess, wait_for
from tests.support.client import Client, more_partitions, new_topics, scram_user, set_configs, set_quotas
from tests.support.power_cut import Disk
from tests.support.small_disk import fill, mounted

STORAGE = 56
TOPIC, BROKER = 2, 4

pytestmark = pytest.mark.slow


class Administrator:
    """Client that requests changes; each method returns the code and the message of its one response."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.raw = Client(broker.bootstrap)

    def _one(self, key: int, version: int, body: dict[str, Any], where: str = "Responses") -> tuple[int, str | None]:
        (row,) = self.raw.call(key, version, body)[where]
        return row["ErrorCode"], row["ErrorMessage"]

    def create(self, name: str, partitions: int = 1, **configs: str) -> tuple[int, str | None]:
        values = {key.replace("_", "."): value for key, value in configs.items()}
        return self._one(19, 7, new_topics(name, partitions=partitions, configs=values), "Topics")

    def delete(self, name: str) -> tuple[int, str | None]:
        return self._one(20, 5, {"TopicNames": [name], "TimeoutMs": 9000})

    def grow(self, name: str, count: int) -> tuple[int, str | None]:
        return self._one(37, 3, more_partitions(name, count), "Results")

    def configure(self, kind: int, name: str, key: str, value: str) -> tuple[int, str | None]:
        return self._one(44, 1, set_configs(kind, name, {key: value}))

    def set_quota(self, user: str, rate: float) -> tuple[int, str | None]:
        return self._one(49, 1, set_quotas("user", user, {"producer_byte_rate": rate}), "Entries")

    def add_user(self, name: str) -> tuple[int, str | None]:
        return self._one(51, 0, scram_user(name), "Results")

    def commit(self, group: str, topic: str, offset: int) -> int:
        """Commit an offset of partition 0 for a group without members."""
        self.raw.call(10, 3, {"Key": group, "KeyType": 0})
        row = {"PartitionIndex": 0, "CommittedOffset": offset, "CommittedMetadata": None}
        facts = {"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "RetentionTimeMs": -1}
        response = self.raw.call(8, 2, {**facts, "Topics": [{"Name": topic, "Partitions": [row]}]})
        return int(response["Topics"][0]["Partitions"][0]["ErrorCode"])

    def committed(self, group: str, topic: str) -> tuple[int, int]:
        """Return the error code and the committed offset."""
        body = {"GroupId": group, "Topics": [{"Name": topic, "PartitionIndexes": [0]}]}
        (row,) = self.raw.call(9, 5, body)["Topics"][0]["Partitions"]
        return row["ErrorCode"], row["CommittedOffset"]

    def topics(self) -> dict[str, int]:
        body = {"Topics": None, "AllowAutoTopicCreation": False, "IncludeTopicAuthorizedOperations": False}
        return {row["Name"]: len(row["Partitions"]) for row in self.raw.call(3, 12, body)["Topics"]}


@pytest.fixture
def connect() -> Iterator[Callable[[BrokerProcess], Administrator]]:
    made: list[Administrator] = []

    def open_client(broker: BrokerProcess) -> Administrator:
        made.append(Administrator(broker))
        return made[-1]

    yield open_client
    for one in made:
        one.raw.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Separate file system of 24 MiB."""
    with mounted(tmp_path / "disk", 24) as place:
        yield place


def test_a_full_disk_can_be_made_room_on(
    small_disk: Path, start_broker: Callable[..., BrokerProcess], connect: Callable[[BrokerProcess], Administrator]
) -> None:
    """On a full disk, new topics are refused; topics can be deleted and configs changed, and the broker restarts."""
    broker = start_broker(folder=small_disk / "data", log__segment__delete__delay__ms="0")
    client = connect(broker)
    for number in range(40):
        assert client.create(f"t{number}", 2)[0] == 0
    ballast = fill(small_disk)
    # the number of topics that still fit into the reserve depends on the file
    responses = [client.create(f"new-{number}", 20, retention_ms="7") for number in range(300)]
    code, text = responses[-1]
    assert code == STORAGE
    assert text
    assert {one for one, _ in responses} <= {0, STORAGE}
    made = {f"new-{number}" for number, (one, _) in enumerate(responses) if one == 0}
    assert client.topics() == {**{f"t{number}": 2 for number in range(40)}, **dict.fromkeys(made, 20)}
    for number in range(40):
        assert client.configure(TOPIC, f"t{number}", "retention.ms", "1000") == (0, None)
    assert client.configure(BROKER, "", "log.retention.ms", "1000") == (0, None)
    assert client.set_quota("noisy", 1.0) == (0, None)
    for number in range(30):
        assert client.delete(f"t{number}") == (0, None)
    before = client.topics()
    broker.kill()
    fill(small_disk)
    broker.start()
    client = connect(broker)
    assert client.topics() == before
    assert client.delete("t30") == (0, None)
    ballast.unlink()
    assert client.create("room", 3) == (0, None)
    assert client.add_user("bob") == (0, None)
    after = client.topics()
    assert broker.stop() == 0
    broker.start()
    assert connect(broker).topics() == after
    said = "".join(broker.output)
    assert "Traceback" not in said


def can_write(folder: Path) -> bool:
    try:
        (folder / "probe").write_bytes(b"x")
    except OSError:
        return False
    return True


def produce(broker: BrokerProcess, topic: str) -> wire.Produced:
    with wire.Connection(broker.bootstrap) as connection:
        return wire.produced(connection.ask(wire.produce(topic, 0, wire.batch([b"value"]))))


def record_count(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    """Return the error code and the number of batches of a Fetch from the start."""
    with wire.Connection(broker.bootstrap) as connection:
        response = wire.fetched(connection.ask(wire.fetch(topic)))
    return response.error_code, len(response.batches())


def test_a_disk_that_turned_read_only(
    tmp_path: Path, start_broker: Callable[..., BrokerProcess], connect: Callable[[BrokerProcess], Administrator]
) -> None:
    """On a read-only disk, changes are refused without effect and reads are served.

    A start is refused with one line; on the repaired disk, nothing is missing and changes succeed.
    """
    disk = Disk(tmp_path)
    broker = BrokerProcess(disk.folder / "data")
    try:
        broker = start_broker(folder=disk.folder / "data", log__flush__interval__messages="1")
        client = connect(broker)
        assert client.create("there") == (0, None)
        assert client.create("idle") == (0, None)
        for number in range(3):
            assert produce(broker, "there") == wire.Produced(0, number)
        wait_for("the coordinator is there", lambda: client.commit("g", "there", 2) == 0, 20, 0.2)
        before = client.topics()
        subprocess.run(["mount", "-o", "remount,abort", disk.folder], check=False, capture_output=True)
        if can_write(disk.folder):
            need.lack("needs a kernel that can turn a disk read-only under a program")
        for _ in range(2):
            for code, text in (
                client.create("new"), client.grow("there", 3), client.configure(TOPIC, "there", "retention.ms", "7"),
                client.configure(BROKER, "", "log.retention.ms", "7"), client.set_quota("u", 1.0), client.add_user("u"),
                client.delete("there"),
            ):  # fmt: skip
                assert code == STORAGE
                assert text
            assert produce(broker, "there").error_code == STORAGE
            assert produce(broker, "idle").error_code == STORAGE
            assert client.commit("g", "there", 3) != 0
            assert client.committed("g", "there") == (0, 2)
            assert record_count(broker, "there") == (0, 3)
        assert client.topics() == before
        refusal = "__cluster_metadata-0 cannot be written, changes are refused until it can be"
        wait_for("the log names the folder", lambda: refusal in "".join(broker.output))
        wait_for("the folder is offline", lambda: f"log folder {disk.folder / 'data'} is offline" in broker.tail())
        assert broker.stop() == 0
        said = "".join(broker.output)
        assert "Traceback" not in said
        assert said.count(refusal) == 1

        refused = BrokerProcess(disk.folder / "data")
        with pytest.raises(AssertionError, match="the broker ended with 1"):
            refused.start()
        assert f"the log folder {disk.folder / 'data'} cannot be written: Read-only file system" in refused.tail()
        assert "Traceback" not in refused.tail()

        disk.remount()
        broker.start()
        client = connect(broker)
        assert client.topics() == before
        assert record_count(broker, "there") == (0, 3)
        assert produce(broker, "there") == wire.Produced(0, 3)
        wait_for("the group is served", lambda: client.committed("g", "there") == (0, 2), 20, 0.2)
        assert client.commit("g", "there", 3) == 0
        assert client.create("new") == (0, None)
        assert client.delete("idle") == (0, None)
        assert broker.stop() == 0
        assert "Traceback" not in "".join(broker.output)
    finally:
        broker.discard()
        disk.close()
