"""Power cuts after acknowledged changes of metadata, which must be kept.

A cut is a copy of the disk's image that is taken while the broker runs, and mounted: the copy has only synced data.
"""

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.metadata.log.folder_reader import read_metadata
from tests.support import need, wire
from tests.support.broker import BrokerProcess
from tests.support.client import Client, more_partitions, new_topics, scram_user, set_configs, set_quotas
from tests.support.power_cut import MAKE, Disk, mounted
from tests.support.wire import Connection

TOPIC, BROKER_TYPE = 2, 4


class Administrator:
    """Client that makes changes, and keeps the expected state after each acknowledged change."""

    def __init__(self, bootstrap: str) -> None:
        self.raw = Client(bootstrap)
        self.topics: dict[str, tuple[int, dict[str, str]]] = {}
        self.broker: dict[str, str] = {"min.insync.replicas": "1"}
        self.users: dict[str, int] = {}
        self.quotas: dict[str, float] = {}
        self._made = 0

    def create(self) -> None:
        self._made += 1
        name = f"t{self._made}"
        response = self.raw.call(19, 7, new_topics(name))
        assert response["Topics"][0]["ErrorCode"] == 0, response
        self.topics[name] = (1, {})

    def delete(self, name: str) -> None:
        response = self.raw.call(20, 4, {"TopicNames": [name], "TimeoutMs": 9000})
        assert response["Responses"][0]["ErrorCode"] == 0, response
        del self.topics[name]

    def grow(self, name: str) -> None:
        count, configs = self.topics[name]
        response = self.raw.call(37, 3, more_partitions(name, count + 1))
        assert response["Results"][0]["ErrorCode"] == 0, response
        self.topics[name] = (count + 1, configs)

    def configure(self, kind: int, name: str, key: str, value: str) -> None:
        response = self.raw.call(44, 1, set_configs(kind, name, {key: value}))
        assert response["Responses"][0]["ErrorCode"] == 0, response

    def configure_topic(self, name: str, value: int) -> None:
        self.configure(TOPIC, name, "retention.ms", str(value))
        self.topics[name] = (self.topics[name][0], {"retention.ms": str(value)})

    def configure_broker(self, value: int) -> None:
        self.configure(BROKER_TYPE, "", "message.max.bytes", str(value))
        self.broker["message.max.bytes"] = str(value)

    def add_user(self, name: str, iterations: int) -> None:
        response = self.raw.call(51, 0, scram_user(name, iterations))
        assert response["Results"][0]["ErrorCode"] == 0, response
        self.users[name] = iterations

    def set_quota(self, name: str, rate: float) -> None:
        response = self.raw.call(49, 1, set_quotas("user", name, {"producer_byte_rate": rate}))
        assert response["Entries"][0]["ErrorCode"] == 0, response
        self.quotas[name] = rate

    def random_change(self, rng: random.Random) -> None:
        names = list(self.topics)
        choice = rng.randrange(7) if names else 0
        if choice == 0:
            self.create()
        elif choice == 1:
            self.grow(rng.choice(names))
        elif choice == 2:
            self.configure_topic(rng.choice(names), rng.randrange(1, 1 << 40))
        elif choice == 3:
            self.configure_broker(rng.randrange(1000, 1 << 30))
        elif choice == 4:
            self.add_user(rng.choice("abc"), rng.randrange(4096, 16384))
        elif choice == 5:
            self.set_quota(rng.choice("abc"), float(rng.randrange(1, 1 << 30)))
        else:
            self.delete(rng.choice(names))

    def state(self) -> tuple[object, ...]:
        return dict(self.topics), dict(self.broker), dict(self.users), dict(self.quotas)


def remembered(folder: Path) -> tuple[object, ...]:
    """Return the metadata that a broker would read from the folder."""
    found = read_metadata(folder)
    assert found is not None
    image = found.image
    topics = {
        name: (len(topic.partitions), dict(image.configs.get((TOPIC, name), {})))
        for name, topic in image.topics.items()
    }
    users = {user: credential.iterations for (user, _), credential in image.scram_credentials.items()}
    quotas = {str(entity.names["user"]): keys["producer_byte_rate"] for entity, keys in image.client_quotas.items()}
    return topics, dict(image.configs[BROKER_TYPE, ""]), users, quotas


@pytest.fixture
def administrator() -> Iterator[Callable[[str], Administrator]]:
    made: list[Administrator] = []

    def connect(bootstrap: str) -> Administrator:
        made.append(Administrator(bootstrap))
        return made[-1]

    yield connect
    for one in made:
        one.raw.close()


@pytest.fixture(params=list(MAKE))
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    if request.param != "ext4" and shutil.which(MAKE[request.param][0]) is None:
        pytest.skip(f"needs {MAKE[request.param][0]}")
    made = Disk(tmp_path, request.param)
    yield made
    made.close()


def cut_after_each(disk: Disk, admin: Administrator, changes: list[Callable[[], None]]) -> list[tuple[Path, Any]]:
    """Make changes one by one, and cut the power after each; return the images with their expected states."""
    cuts = []
    for change in changes:
        change()
        cuts.append((disk.cut(), admin.state()))
    return cuts


def check(cuts: list[tuple[Path, Any]]) -> None:
    for image, expected in cuts:
        with mounted(image) as folder:
            assert remembered(folder / "data") == expected


@pytest.mark.slow
def test_acknowledged_metadata_survives_a_power_cut(
    disk: Disk, start_broker: Callable[..., BrokerProcess], administrator: Callable[[str], Administrator]
) -> None:
    """Changes of topics, partitions, configs, users and quotas are kept by a cut after each of them."""
    broker = start_broker(folder=disk.folder / "data")
    admin = administrator(broker.bootstrap)
    steps: list[Callable[[], None]] = [
        admin.create,
        lambda: admin.configure_topic("t1", 12345),
        lambda: admin.configure_broker(54321),
        lambda: admin.grow("t1"),
        lambda: admin.add_user("bob", 5000),
        lambda: admin.set_quota("alice", 7.0),
        admin.create,
        lambda: admin.delete("t1"),
    ]
    cuts = cut_after_each(disk, admin, steps)
    broker.kill()
    last = disk.cut()
    disk.close()
    check(cuts)
    with mounted(last) as folder:
        again = start_broker(folder=folder / "data")
        every = {"Topics": None, "AllowAutoTopicCreation": False, "IncludeTopicAuthorizedOperations": False}
        with Client(again.bootstrap) as raw:
            response = raw.call(3, 12, every)
        assert [(row["Name"], len(row["Partitions"])) for row in response["Topics"]] == [("t2", 1)]
        assert (folder / "data" / "t2-0" / "partition.metadata").read_text().startswith("version: 0\ntopic_id: ")
        assert again.stop() == 0


def state_of(connection: Connection, topic: str) -> tuple[int, int]:
    """Return the error code and the number of batches of a Fetch from the start of a partition."""
    response = wire.fetched(connection.ask(wire.fetch(topic)))
    return response.error_code, len(response.batches())


@pytest.mark.slow
def test_a_new_topic_and_its_flushed_records_survive_a_power_cut(
    disk: Disk, start_broker: Callable[..., BrokerProcess], administrator: Callable[[str], Administrator]
) -> None:
    """A cut after the creation of a topic or a flushed record loses nothing.

    The topic id in a folder is synced with the first flushed record; until then, a start writes it again. A topic that
    is deleted and created again is empty.
    """
    broker = start_broker(folder=disk.folder / "data", log__flush__interval__messages="1")
    admin = administrator(broker.bootstrap)
    cuts: list[tuple[Path, int]] = []  # images, and the number of acknowledged batches
    with Connection(broker.bootstrap) as connection:
        for round_ in range(2):
            admin.raw.call(19, 7, new_topics("new"))
            cuts.append((disk.cut(), 0))
            for number in range(2):
                response = wire.produced(connection.ask(wire.produce("new", 0, wire.batch([b"value"]))))
                assert response == wire.Produced(0, number)
                cuts.append((disk.cut(), number + 1))
            if round_ == 0:
                admin.raw.call(20, 4, {"TopicNames": ["new"], "TimeoutMs": 9000})
    broker.kill()
    disk.close()
    for image, batches in cuts:
        with mounted(image) as folder:
            if batches:
                assert (
                    (folder / "data" / "new-0" / "partition.metadata").read_text().startswith("version: 0\ntopic_id: ")
                )
            again = start_broker(folder=folder / "data", log__flush__interval__messages="1")
            assert not [line for line in again.output if "another topic" in line or "Traceback" in line]
            with Connection(again.bootstrap) as connection:
                assert state_of(connection, "new") == (0, batches)
                response = wire.produced(connection.ask(wire.produce("new", 0, wire.batch([b"value"]))))
                assert response == wire.Produced(0, batches)
            assert again.stop() == 0


@pytest.mark.soak
def test_many_power_cuts(
    disk: Disk, start_broker: Callable[..., BrokerProcess], administrator: Callable[[str], Administrator]
) -> None:
    """Each of eighty random changes survives a power cut directly after it."""
    rng = random.Random(20)
    broker = start_broker(folder=disk.folder / "data")
    admin = administrator(broker.bootstrap)
    cuts = cut_after_each(disk, admin, [lambda: admin.random_change(rng)] * 80)
    broker.kill()
    disk.close()
    check(cuts)


# ---------------------------------------------------------------- order of system calls, without a separate disk

CHANGES = """
import os, sys, uuid
from pathlib import Path
from kbroker.common.configs.config import BrokerConfig
from kbroker.log.checkpoints import uuid_to_text
from kbroker.log.log_dir import LogDir
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.manager import LogManager
from kbroker.protocol.records import RecordBatchBuilder
from kbroker._core.clock import SystemClock
from kbroker.metadata.configs.resource_configs import config_records
from kbroker.metadata.controller import Controller
from kbroker.metadata.image.partition_registration import PartitionRegistration
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.log.opening import open_metadata
from kbroker.metadata.records.metadata_record import metadata_record

def acknowledge(what):
    os.write(1, b"ACK " + what.encode() + b"\\n")

folder = Path(sys.argv[1]) / "new" / "data"
logs = LogDir(folder)
acknowledge("log folder")
storage, image = open_metadata(folder, [], logs.directory_id, BrokerConfig({}), SystemClock(), is_clean=True)
controller = Controller(1, logs.owner.cluster_id, storage, image)
controller.change(lambda image: config_records(32, "g", {}, {"consumer.session.timeout.ms": "45000"}))
acknowledge("metadata log")
registration = PartitionRegistration((1,), (logs.directory_id,), (1,), (), (), 1, 0, 0, 0)
for number in range(3):
    topic_id = uuid.UUID(int=number + 1000)
    records = [metadata_record("TopicRecord", {"Name": f"t{number}", "TopicId": topic_id}),
               metadata_record("PartitionRecord", registration.to_record(topic_id, 0))]
    controller.change(lambda image: records)
    acknowledge("topic")
controller.change(lambda image: config_records(4, "", {}, {"message.max.bytes": "100"}))
acknowledge("config")
image = controller.image
storage.log.write_snapshot(records_of(image, image.level), image.offset, image.epoch, 1)
acknowledge("snapshot")
controller.change(lambda image: [metadata_record("RemoveTopicRecord", {"TopicId": uuid.UUID(int=1000)})])
acknowledge("removal")
logs.create_partition_folder("t1", 0, uuid.UUID(int=1))
logs.create_partition_folder("t2", 0, uuid.UUID(int=2))
logs.sync()
acknowledge("partition folders")
logs.rename_for_delete("t1", 0)
logs.sync()
acknowledge("deleted partition")
logs.recovery_points.write({("t2", 0): 5})
acknowledge("checkpoint")
storage.log.close()
logs.close(clean=True)
acknowledge("clean stop")
config = BrokerConfig({})
manager = LogManager([folder.with_name("records")], None, config)
manager.start([TopicLogs("t", uuid.UUID(int=7), 1, config.topic_configs({"flush.messages": "1"}))], run_threads=False)
builder = RecordBatchBuilder()
builder.append(None, b"value", 1)
log = manager.partition("t", 0)
log.append(builder.build())
log.flush()
acknowledge("flushed record")
os._exit(0)
"""
CALL = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)(?:<(.*?)>)?")
WRITES = {"write", "pwrite64", "writev", "pwritev", "ftruncate", "fallocate"}
SYNCS = {"fsync", "fdatasync"}
NAMES = {"rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"}


def unsynced_at_each_acknowledgement(trace: str, below: Path) -> dict[str, set[str]]:
    """Replay recorded system calls; return the unsynced files and folders at each acknowledgement."""
    pending: set[str] = set()
    made: set[str] = set()
    found: dict[str, set[str]] = {}
    for line in trace.splitlines():
        match = CALL.match(line)
        if match is None or int(match[3]) < 0:
            continue
        call, arguments, result_path = match[1], match[2], match[4] or ""
        on = re.match(r"\d+<(.*?)>", arguments)
        path = on[1] if on else ""
        if call == "write" and '"ACK ' in arguments:
            what = arguments.split('"ACK ')[1].split("\\n")[0]
            found.setdefault(what, set()).update(pending)
        elif call in WRITES and path.startswith(str(below)):
            pending.add(path)
        elif call in SYNCS:
            pending.discard(path)
        elif call == "openat" and "O_CREAT" in arguments and result_path.startswith(str(below)):
            if result_path not in made:
                made.add(result_path)
                pending.add(str(Path(result_path).parent))
        elif call in NAMES:
            for name in re.findall(r'"([^"]+)"', arguments):
                if name.startswith(str(below)):
                    made.discard(name)
                    pending.discard(name)
                    pending.add(str(Path(name).parent))
    return found


@pytest.mark.slow
def test_nothing_is_acknowledged_before_it_is_synced(tmp_path: Path) -> None:
    """At each acknowledgement, every written file and every folder with changed names is synced."""
    need.program("strace")
    trace = tmp_path / "trace"
    below = tmp_path / "base"
    below.mkdir()
    calls = ",".join(sorted({"openat", *WRITES, *SYNCS, *NAMES}))
    traced = ["strace", "-f", "-y", "-s", "200", "-e", f"trace={calls}", "-o", str(trace)]
    command = [*traced, sys.executable, "-c", CHANGES, str(below)]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if "ptrace" in made.stderr and made.returncode != 0:
        need.lack(f"needs to trace a child process: {made.stderr.strip()}")
    assert made.returncode == 0, made.stderr
    found = unsynced_at_each_acknowledgement(trace.read_text(), below)
    assert len(found) == 11
    of_record = str(below / "new" / "records" / "t-0")
    unsynced = {path for path in found.pop("flushed record") if path.startswith(of_record)}
    assert unsynced == set(), "a flushed record may be in a folder that names no topic, or has no name for its segment"
    # a stop truncates the indexes of the metadata log, which a start rebuilds
    log = below / "new" / "data" / "__cluster_metadata-0"
    found["clean stop"] -= {str(log), *(str(log / f"{0:020}{end}") for end in (".index", ".timeindex"))}
    # The next start writes the pid of the lock and the topic ids of folders again, from the metadata.
    data = below / "new" / "data"
    again = {
        str(data / name) for name in (".lock", "t1-0", "t2-0", "t1-0/partition.metadata", "t2-0/partition.metadata")
    }
    assert {what: paths - again for what, paths in found.items()} == {what: set() for what in found}
