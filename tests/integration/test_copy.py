"""`kbroker copy` between two brokers: every record is copied exactly once, in spite of kills."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client.admin import EARLIEST, LATEST, Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer
from kbroker.client.transactional_producer import TransactionalProducer
from tests.support.broker import BrokerProcess
from tests.support.cli import run

PARTITIONS = 3
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "transaction.state.log.num.partitions": "1"}
Content = dict[int, list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Cluster, str, str]]:
    folder = tmp_path_factory.mktemp("copy")
    with (
        BrokerProcess(folder / "source", SETTINGS) as source,
        BrokerProcess(folder / "target", SETTINGS) as target,
        Cluster(source.bootstrap) as one,
        Cluster(target.bootstrap) as other,
    ):
        yield one, other, source.bootstrap, target.bootstrap


def content(cluster: Cluster, topic: str) -> Content:
    """Return the committed records of each partition: timestamp, key, value, headers."""
    places = [(topic, number) for number in range(PARTITIONS)]
    consumer = Consumer(cluster, dict.fromkeys(places, EARLIEST), read_committed=True, max_wait_ms=50)
    ends = Admin(cluster).list_offsets(dict.fromkeys(places, LATEST), read_committed=True)
    found: Content = {number: [] for number in range(PARTITIONS)}
    while any(consumer.positions[place] < ends[place].offset for place in places):
        for record in consumer.poll():
            found[record.partition].append((record.timestamp_ms, record.key, record.value, record.headers))
    return found


def make(cluster: Cluster, topic: str, count: int = 0, **configs: str) -> None:
    """Create a topic with records without a transaction, and of committed and aborted transactions."""
    Admin(cluster).create_topics([NewTopic(topic, PARTITIONS, 1, configs)])
    with Producer(cluster, batch_size_bytes=4096) as producer:
        for number in range(count):
            headers = [("number", b"%d" % number), ("none", None)] if number % 3 else []
            value = None if number % 10 == 9 else b"value %d" % number
            producer.send(
                topic, value, b"key %d" % (number % 7), timestamp_ms=1_700_000_000_000 + number, headers=headers
            )
    producer = TransactionalProducer(cluster, f"writer-of-{topic}")
    producer.init_transactions()
    for ends_well in (True, False, True):
        producer.begin_transaction()
        for number in range(PARTITIONS):
            producer.send(topic, b"committed" if ends_well else b"aborted", partition=number)
        producer.flush()
        producer.commit_transaction() if ends_well else producer.abort_transaction()


def test_everything_stays(clusters: tuple[Cluster, Cluster, str, str]) -> None:
    """The copy has the same records and configs; a second copy adds only the new records."""
    one, other, source, target = clusters
    make(one, "plain", 300, **{"retention.ms": "-1", "message.timestamp.type": "CreateTime"})
    words = ["copy", "plain", "-b", source, "--to", target, "--rename", "plain=copied"]
    done = run(None, *words)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("created copied\ncopied ")
    assert content(other, "copied") == content(one, "plain")
    assert sum(map(len, content(other, "copied").values())) == 300 + 2 * PARTITIONS
    described = run(None, "topics", "describe", "copied", "-b", target, "--json")
    assert json.loads(described.stdout)[0]["configs"] == {"retention.ms": "-1"}
    assert run(None, *words).stdout.splitlines()[0] == "copied 0 offsets"
    with Producer(one) as producer:
        producer.send("plain", b"later", partition=1)
    again = json.loads(run(None, *words, "--json").stdout)
    assert [row["to_offset"] - row["from_offset"] for row in again] == [0, 1, 0]
    assert content(other, "copied") == content(one, "plain")
    shown = run(None, "copy", "plain", "-b", source, "--to", target, "--prefix", "all-", "--read-uncommitted", "--json")
    assert shown.exit_code == 0
    assert sum(map(len, content(other, "all-plain").values())) == 301 + 3 * PARTITIONS


def test_refusals(clusters: tuple[Cluster, Cluster, str, str]) -> None:
    """A copy that would duplicate or mix records is refused with a hint."""
    one, other, source, target = clusters
    make(one, "wide", 3)
    words = ["copy", "wide", "-b", source, "--to"]
    assert "the same cluster: give the copy another name" in run(None, *words, source).stderr
    make(other, "wide", 1)
    assert "give --append" in run(None, *words, target).stderr
    assert run(None, *words, target, "--append").exit_code == 0
    Admin(one).delete_topics(["wide"])
    make(one, "wide", 1)
    assert "was deleted and created again since the last copy" in run(None, *words, target).stderr
    Admin(other).create_topics([NewTopic("narrow", 1, 1, {})])
    refused = run(None, *words, target, "--rename", "wide=narrow")
    assert refused.exit_code == 1
    assert "narrow: expected 3 partitions in the target, as wide has, found 1: add partitions" in refused.stderr
    assert run(None, *words, target, "--rename", "wibe=x").exit_code == 2
    twice = run(None, "copy", "wide", "other", "-b", source, "--to", target, "--rename", "other=wide")
    assert "wide and other have the same copy wide: give each another name" in twice.stderr
    assert run(None, "copy", "--to", target, "-b", source).exit_code == 2
    assert run(None, "copy", "missing", "--to", target, "-b", source).exit_code == 1


def test_killed_copies(clusters: tuple[Cluster, Cluster, str, str], tmp_path: Path) -> None:
    """After five kills with SIGKILL, the copy has each record once and in order."""
    one, other, source, target = clusters
    make(one, "killed", 5000)
    wanted = content(one, "killed")
    command = [sys.executable, "-m", "kbroker", "copy", "killed", "-b", source, "--to", target]
    command += ["--transaction-records", "1"]
    places = [("killed", number) for number in range(PARTITIONS)]
    Admin(other).create_topics([NewTopic("killed", PARTITIONS, 1, {})])
    kills = 0
    while kills < 5:
        before = sum(info.offset for info in Admin(other).list_offsets(dict.fromkeys(places, LATEST)).values())
        process = subprocess.Popen([*command, "--fetch-bytes", "2048"])
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            now = sum(info.offset for info in Admin(other).list_offsets(dict.fromkeys(places, LATEST)).values())
            if now > before + 100 + 37 * kills:
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait(30) == -signal.SIGKILL, "the copy ended before the kill"
        kills += 1
    assert sum(map(len, content(other, "killed").values())) < sum(map(len, wanted.values()))
    last = run(None, "copy", "killed", "-b", source, "--to", target)
    assert last.exit_code == 0, last.output
    assert content(other, "killed") == wanted


@pytest.mark.usefixtures("sigint_is_not_ignored")
def test_follow_until_ctrl_c(clusters: tuple[Cluster, Cluster, str, str]) -> None:
    """With `--follow`, new records are copied until Ctrl-C, which ends the command with status 0."""
    one, other, source, target = clusters
    make(one, "followed")
    command = [sys.executable, "-m", "kbroker", "copy", "followed", "-b", source, "--to", target, "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for number in range(3):
            with Producer(one) as producer:
                producer.send("followed", b"%d" % number, partition=0)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                if "followed" in Admin(other).list_topics() and len(content(other, "followed")[0]) == 3 + number:
                    break
            else:
                pytest.fail("the record is not copied")
        process.send_signal(signal.SIGINT)
        try:
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert json.loads(out)[0]["topic"] == "followed"
    assert content(other, "followed") == content(one, "followed")
