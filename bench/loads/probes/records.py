"""Probes of records: written, read, found by time, deleted, expired, compacted."""

import re
import shutil
import subprocess
import time

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from bench.loads.contenders import Skipped
from bench.loads.probes.place import ANSWER_S, Lacking, Place, Probe, expect
from tests.clients.everyday import Lines
from tests.clients.everyday_python import ConfluentEveryday
from tests.clients.python_clients import ALL_CODECS, Client, Confluent, KafkaPython, Record
from tests.support import wire
from tests.support.broker import wait_for

INIT_PRODUCER_ID = 22
OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER = 45, 46
HOUR_MS = 3_600_000
CLEANED_S = 40.0  # each server that can be configured so checks every half second
RECORDS = [Record(b"%d " % n + b"abc " * 50) for n in range(20)]


def there_and_back(place: Place, client: Client, codec: str) -> None:
    topic = place.create(f"codec-{codec}")
    client.produce(topic, 0, RECORDS, codec=codec, idempotent=False)
    read = [record.value for record in client.consume(topic, 0, len(RECORDS))]
    expect(read == [record.value for record in RECORDS], f"{codec}: other records came back")


def each_codec(place: Place, client: Client) -> str | None:
    failed = {}
    for codec in client.codecs:
        try:
            there_and_back(place, client, codec)
        except Exception as failure:
            failed[codec] = str(failure) or repr(failure)
    if len(failed) == len(client.codecs):
        raise Lacking(next(iter(failed.values())))
    return f"all but {', '.join(failed)}" if failed else None


def codecs(place: Place) -> str | None:
    return each_codec(place, Confluent(place.bootstrap))


def kafka_python(place: Place) -> str | None:
    return each_codec(place, KafkaPython(place.bootstrap))


def kcat(place: Place) -> str | None:
    if shutil.which("kcat") is None:
        raise Skipped("no kcat here; on Debian: apt-get install kcat")
    said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=False).stdout
    topic = place.create("kcat")
    base = ["kcat", "-b", place.bootstrap, "-t", topic, "-p", "0"]
    lines = [b"%d" % n for n in range(20)]
    for codec in ALL_CODECS:
        subprocess.run([*base, "-P", "-z", codec], input=b"\n".join(lines), check=True, capture_output=True, timeout=20)
    count = len(lines) * len(ALL_CODECS)
    command = [*base, "-C", "-q", "-o", "beginning", "-c", str(count), "-X", "check.crcs=true"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=20)
    version = re.findall(r"librdkafka ([\d.]+)", said)
    expect(done.stdout.split() == lines * len(ALL_CODECS), f"kcat ({', '.join(version)}) read other records")
    return None


def idempotent(place: Place) -> None:
    """An idempotent producer's records are stored once, even if a batch is repeated as after a lost response."""
    topic = place.create("idempotent")
    values = [b"%d" % n for n in range(100)]
    place.send(topic, values, {"enable.idempotence": True})
    expect(place.values(topic) == values, "the idempotent producer's records came back otherwise")
    with place.cluster() as cluster:
        body = {"TransactionalId": None, "TransactionTimeoutMs": 60_000}
        identity = cluster.request(INIT_PRODUCER_ID, body, max_version=4)
    expect(identity["ErrorCode"] == 0, f"InitProducerId: error {identity['ErrorCode']}")
    twice = place.create("twice")

    def batch(sequence: int) -> bytes:
        whole = wire.batch(
            [b"once"],
            producer_id=identity["ProducerId"],
            producer_epoch=identity["ProducerEpoch"],
            base_sequence=sequence,
        )
        return wire.produce(twice, 0, whole, acks=-1)

    with wire.Connection(place.bootstrap) as connection:
        for allowed in ((0,), (0, DUPLICATE_SEQUENCE_NUMBER)):  # both codes mean success to clients
            code = wire.produced(connection.ask(batch(0))).error_code
            expect(code in allowed, f"a batch sent twice: error {code}")
        end = wire.end_offset(place.bootstrap, twice)
        expect(end == 1, f"a batch sent twice was kept {end} times")
        code = wire.produced(connection.ask(batch(5))).error_code
    expect(code == OUT_OF_ORDER_SEQUENCE_NUMBER, f"a batch with others missing before it: error {code}")


def by_time(place: Place) -> None:
    """Fifty records 10 ms apart are read from a time between two of them."""
    topic = place.topic("by")
    everyday = ConfluentEveryday(place.bootstrap, topic, int(time.time() * 1000) - HOUR_MS)
    everyday.client.create(f"{topic}-time", 1)
    said = everyday.by_time()
    expect(said["offset"] == 18, f"offset {said['offset']} instead of 18")
    Lines(place.bootstrap, topic).judge_by_time(said)


def delete_records(place: Place) -> None:
    topic = place.create("delete-records")
    place.send(topic, [b"%d" % n for n in range(10)])
    done = place.admin.delete_records([TopicPartition(topic, 0, 6)])
    for future in done.values():
        future.result(ANSWER_S)
    wait_for("the log starts at 6", lambda: place.bounds(topic) == (6, 10), 5)
    expect(place.values(topic) == [b"6", b"7", b"8", b"9"], "deleted records are still read")


def create_partitions(place: Place) -> None:
    topic = place.create("partitions")
    place.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(ANSWER_S)
    wait_for("the third partition has a leader", lambda: wire.is_ready(place.bootstrap, topic, 2), 10)
    place.send(topic, [b"third"], partition=2)
    expect(place.values(topic, partition=2) == [b"third"], "the new partition holds something else")


def retention(place: Place) -> None:
    """Records above retention.ms are deleted without a request, and offsets continue."""
    topic = place.create("retention", configs={"retention.ms": "60000"})
    place.send(topic, [b"old"] * 10, timestamp=int(time.time() * 1000) - HOUR_MS)
    given_up = time.monotonic() + CLEANED_S
    while place.bounds(topic) != (10, 10):
        expect(time.monotonic() < given_up, f"after {CLEANED_S:g} s the old records are still there")
        time.sleep(0.5)
    expect(place.send(topic, [b"new"]) == [10], "offsets begin anew")
    expect(place.values(topic) == [b"new"], "old records are still read")


def compaction(place: Place) -> None:
    """The last of many values of a key remains."""
    policy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500"}
    topic = place.create("compaction", configs=policy)
    for turn in range(5):
        for key in (b"a", b"b", b"c"):
            place.send(topic, [b"%d" % turn], key=key)
    started = time.monotonic()
    while time.monotonic() < started + CLEANED_S:
        place.send(topic, [b"x"], key=b"later")  # starts a new segment, because the active one is never compacted
        found = [(m.key(), m.value()) for m in place.read(topic) if m.key() != b"later"]
        expect(dict(found) == dict.fromkeys((b"a", b"b", b"c"), b"4"), f"the last values are {found}")
        if len(found) == 3:
            return
        time.sleep(1)
    raise Lacking(f"after {CLEANED_S:g} s {len(found)} values of 3 keys are still read")


PROBES = [
    Probe("confluent-kafka: each codec written and read back", codecs, 150, short=False),
    Probe("kafka-python: each codec written and read back", kafka_python, 200, short=False),
    Probe("kcat on librdkafka 2.0.2, each codec", kcat, 150, short=False),
    Probe("idempotent producer; a batch sent twice is kept once", idempotent),
    Probe("reading from a time on", by_time, short=False),
    Probe("DeleteRecords", delete_records, short=False),
    Probe("more partitions for a topic", create_partitions, short=False),
]
CLEANING = [
    Probe("retention removes old records", retention, 80, short=False),
    Probe("compaction keeps the last value of a key", compaction, 80, short=False),
]
