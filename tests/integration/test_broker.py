"""Broker in the test process: start, stop, restart, and two brokers side by side."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.broker import Broker, BrokerStartError
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.open_files import raise_open_files_limit
from kbroker.protocol.records import RecordBatchBuilder
from tests.support import wire
from tests.support.client import Body, Client, fetch_body, new_topics, produce_body, row_of
from tests.support.compaction import keyed
from tests.support.descriptors import descriptors
from tests.support.log_files import NOW_MS
from tests.support.wire import Closed

FREE = {"listeners": "PLAINTEXT://127.0.0.1:0"}


def ask(broker: Broker, key: int, version: int, body: Body) -> Body:
    """Send one request over a new connection and return the response."""
    with Client(broker.bootstrap_servers) as one:
        return one.call(key, version, body)


def create(broker: Broker, name: str, partitions: int = 1) -> Body:
    (topic,) = ask(broker, 19, 7, new_topics(name, partitions=partitions))["Topics"]
    return dict(topic)


def topic_names(broker: Broker) -> list[str]:
    return [row["Name"] for row in ask(broker, 3, 12, {"Topics": None})["Topics"]]


def broker_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if "kafka" in t.name or "reaper" in t.name or "log-" in t.name]


def test_two_brokers_know_nothing_of_each_other() -> None:
    """Two brokers have their own topics, cluster ids and ports; a stop ends their threads and closes their ports."""
    before = broker_threads()
    with Broker() as one, Broker() as two:
        create(one, "only-here")
        assert (topic_names(one), topic_names(two)) == (["only-here"], [])
        assert one.cluster_id != two.cluster_id
        assert one.bootstrap_servers != two.bootstrap_servers
        address = one.bootstrap_servers
    assert broker_threads() == before
    with pytest.raises(OSError):
        Client(address)


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_the_ready_line_has_addresses_for_clients() -> None:
    """An IPv6 address is in brackets, the form that clients accept."""
    with Broker({"listeners": "PLAINTEXT://[::1]:0", "kbroker.in.memory": True}) as broker:
        port = broker.bootstrap_servers.removeprefix("[::1]:")
        assert broker.describe().startswith(f"PLAINTEXT://[::1]:{port}, node 1, ")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc")
def test_a_stopped_broker_has_no_descriptors() -> None:
    """A stop closes all descriptors of the broker, without a run of the garbage collector."""
    import gc

    broker = Broker({**FREE, "kbroker.in.memory": True, "kbroker.metrics.listener": "127.0.0.1:0"})

    def serve() -> int:
        with broker:
            create(broker, "t")
            assert broker.exposition.text()
        return len(descriptors())

    serve()  # imports modules that open files
    gc.collect()
    gc.disable()
    try:
        before = len(descriptors())
        assert serve() == before
    finally:
        gc.enable()


def test_a_restart_finds_everything(tmp_path: Path) -> None:
    """Topics and their ids, the cluster id and the next producer id survive a restart."""
    with Broker({**FREE, "log.dirs": tmp_path}) as broker:
        made = create(broker, "t", 3)
        cluster, first_id = broker.cluster_id, ask(broker, 22, 4, {"TransactionalId": None})["ProducerId"]
    broker.start()
    response = ask(broker, 3, 12, {"Topics": [{"Name": None, "TopicId": made["TopicId"]}]})
    assert (response["ClusterId"], response["Topics"][0]["Name"], len(response["Topics"][0]["Partitions"])) == (
        cluster,
        "t",
        3,
    )
    assert ask(broker, 22, 4, {"TransactionalId": None})["ProducerId"] > first_id
    broker.stop()
    broker.stop()


def test_a_folder_is_used_by_one_broker(tmp_path: Path) -> None:
    """A second broker on the folder is refused without harm to the first; after a stop the folder is free."""
    config = {**FREE, "log.dirs": tmp_path}
    with Broker(config) as first:
        with pytest.raises(BrokerStartError, match="in use by this process"):
            Broker(config).start()
        create(first, "t")
    with Broker(config) as again:
        assert topic_names(again) == ["t"]


def test_a_port_in_use(tmp_path: Path) -> None:
    """A start on a used port fails with the address, ends its threads and frees its folder."""
    with Broker() as other:
        before = broker_threads()
        late = Broker({"listeners": f"PLAINTEXT://{other.bootstrap_servers}", "log.dirs": tmp_path})
        with pytest.raises(BrokerStartError, match=f"cannot listen on PLAINTEXT://{other.bootstrap_servers}"):
            late.start()
        assert broker_threads() == before
    with Broker({**FREE, "log.dirs": tmp_path}):
        pass


def test_misuse_is_refused() -> None:
    """A second start, a property of a stopped broker and an invalid config are errors."""
    broker = Broker()
    with pytest.raises(RuntimeError, match="does not run"):
        _ = broker.bootstrap_servers
    with broker, pytest.raises(BrokerStartError, match="runs already"):
        broker.start()
    with pytest.raises(ConfigError):
        Broker({"num.io.threads": 0})


def test_each_listener_advertises_its_own_address() -> None:
    """Metadata has the addresses of the listener that the client used; an advertised address replaces the bound one."""
    config = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "advertised.listeners": "OUTSIDE://broker.example:1234",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "kbroker.in.memory": True,
    }
    with Broker(config) as broker:
        inside = broker.context.endpoints["INSIDE"]
        response = ask(broker, 3, 12, {"Topics": []})
        assert (response["Brokers"][0]["Host"], response["Brokers"][0]["Port"]) == inside
        assert broker.context.endpoints["OUTSIDE"] == ("broker.example", 1234)


@pytest.mark.parametrize("version", [7, 8, 12])
def test_produce_names_every_refused_record(version: int) -> None:
    """From v8 on, the response lists each record without a key that a compacted topic refused."""
    with Broker() as broker:
        ask(broker, 19, 4, new_topics("t", configs={"cleanup.policy": "compact"}))
        batch = keyed((None, b"a"), (b"k", b"b"), (None, b"c"), (None, b"d"))
        row = row_of(ask(broker, 0, version, produce_body("t", batch)))
        assert (row["ErrorCode"], row["BaseOffset"]) == (87, -1)
        if version >= 8:
            assert [one["BatchIndex"] for one in row["RecordErrors"]] == [0, 2, 3]
            text = "Compacted topic cannot accept message without key in topic partition t-0"
            assert {one["BatchIndexErrorMessage"] for one in row["RecordErrors"]} == {text}


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("version", [8, 12])
def test_produce_gives_the_reason_of_each_refused_record(version: int, codec: int) -> None:
    """Records without a key and with a wrong time in one batch have their own reasons, with the accepted times."""
    limits = {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "2000"}
    clock = VirtualClock(NOW_MS)
    with Broker(clock=clock) as broker:
        ask(broker, 19, 4, new_topics("t", configs={"cleanup.policy": "compact", **limits}))
        builder = RecordBatchBuilder(codec)
        for key, after_ms in ((b"k", 0), (b"k", -1001), (None, 2001), (b"k", 2001), (None, 0)):
            builder.append(key, b"v", NOW_MS + after_ms)
        row = row_of(ask(broker, 0, version, produce_body("t", builder.build())))
    without_key = "Compacted topic cannot accept message without key in topic partition t-0"
    bounds = f"is out of range. The timestamp should be within [{NOW_MS - 1000}, {NOW_MS + 2000}]"
    assert row["ErrorCode"] == 32
    assert [(one["BatchIndex"], one["BatchIndexErrorMessage"]) for one in row["RecordErrors"]] == [
        (1, f"Timestamp {NOW_MS - 1001} of message with offset 1 {bounds}"),
        (2, without_key),
        (3, f"Timestamp {NOW_MS + 2001} of message with offset 3 {bounds}"),
        (4, without_key),
    ]


def test_produce_names_a_record_with_the_time_of_the_broker() -> None:
    """Only a broker may set the attribute of LogAppendTime; the record's reason says so."""
    with Broker() as broker:
        ask(broker, 19, 4, new_topics("t", configs={"message.timestamp.type": "LogAppendTime"}))
        row = row_of(ask(broker, 0, 12, produce_body("t", wire.batch(attributes=8))))
    assert (row["ErrorCode"], [one["BatchIndexErrorMessage"] for one in row["RecordErrors"]]) == (
        32,
        ["Invalid timestamp type in message with offset 0. Producer should not set timestamp type to LogAppendTime."],
    )


def test_stop_completes_a_delayed_fetch() -> None:
    """A stop ends a delayed fetch before its timeout, with an empty response or a closed connection."""
    with Broker() as broker:
        create(broker, "t")
        one = Client(broker.bootstrap_servers, timeout=5)
        one.begin(1, 4, fetch_body("t", max_wait_ms=30_000))
        # whether the fetch is delayed by now or not, it must end
        ask(broker, 3, 12, {"Topics": []})
        started = time.monotonic()
    assert time.monotonic() - started < 10
    with one, contextlib.suppress(Closed):
        assert row_of(one.end())["ErrorCode"] == 0


def test_a_child_made_by_fork_leaves_the_broker_alone(tmp_path: Path) -> None:
    """A forked child can neither stop the broker nor write to its folder."""
    with Broker({**FREE, "log.dirs": tmp_path}) as broker:
        create(broker, "t")
        code = f"""
import os, sys
from kbroker.broker import Broker
broker = Broker({{**{FREE!r}, "log.dirs": {str(tmp_path / "inner")!r}}})
broker.start()
child = os.fork()
if child == 0:
    broker.stop()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert not os.path.exists({str(tmp_path / "inner" / ".kafka_cleanshutdown")!r})
broker.stop()
assert os.path.exists({str(tmp_path / "inner" / ".kafka_cleanshutdown")!r})
"""
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)
        assert topic_names(broker) == ["t"]


def test_a_child_made_by_fork_removes_no_folder() -> None:
    """The temporary folders of data and snapshots outlive the ends of children, which cannot use the broker."""
    code = """
import os, sys
from kbroker.testing import EmbeddedBroker
with EmbeddedBroker(snapshots=True) as broker:
    broker.create_topic("t")
    snapshot = broker.snapshot()
    child = os.fork()
    if child == 0:
        try:
            broker.create_topic("u")
        except RuntimeError as error:
            print(error)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    broker.create_topic("v")
    broker.restore(snapshot)
    assert broker.topics == {"t": 1}, broker.topics
    folder = broker.config.log_dir
assert not folder.exists()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    expected = "this broker runs in the parent process; a child made by fork must start another broker\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_a_process_that_ends_without_stop_ends_in_order(tmp_path: Path) -> None:
    """At the exit of the process, the broker stops and leaves the clean shutdown file."""
    code = f"""
from kbroker.broker import Broker
broker = Broker({{**{FREE!r}, "log.dirs": {str(tmp_path)!r}}})
broker.start()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads memory from /proc")
def test_start_and_idle_memory(tmp_path: Path) -> None:
    """A small broker needs less than 50 MiB, and its first Metadata response less than 1 s of CPU time."""
    code = f"""
import time
begin = time.process_time()
from kbroker.broker import Broker
broker = Broker({{**{FREE!r}, "log.dirs": {str(tmp_path)!r}}})
broker.start()
import socket, struct
host, _, port = broker.bootstrap_servers.rpartition(":")
one = socket.create_connection((host, int(port)))
one.sendall(struct.pack(">ihhihi", 14, 3, 1, 1, 0, 0))
assert one.recv(4096)
print(time.process_time() - begin)
print([line for line in open("/proc/self/status") if line.startswith("VmRSS")][0].split()[1])
broker.stop()
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    seconds, kib = done.stdout.split()
    assert float(seconds) < 1.0
    assert int(kib) < 50 * 1024


def test_open_files_limit_is_never_lowered() -> None:
    """A limit of open files below the current soft limit changes nothing."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_open_files_limit(64)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
