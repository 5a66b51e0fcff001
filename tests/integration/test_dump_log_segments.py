"""Files of a log as read by Apache Kafka's DumpLogSegments, compared with kbroker's reader."""

import json
import random
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.manager import LogManager
from kbroker.log.tools.dump import describe, dump_file
from kbroker.log.tools.verify import verify
from kbroker.metadata.records.batches import build_control, build_records
from kbroker.metadata.records.control_records import KRaftVersion, LeaderChange, Voter, VoterEndpoint, Voters
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.metadata.records.record_json import record_json
from kbroker.metadata.records.snapshot_files import snapshot_name, write_snapshot
from kbroker.protocol.records import RecordBatchBuilder
from kbroker.protocol.schema import data_versions
from tests.support.kafka.tools import TOOLS, run_tool
from tests.support.wire_bodies import FOLDER, random_body

NOW_MS = 1_700_000_000_000
SETTINGS = {"segment.bytes": "1048576", "index.interval.bytes": "512", "segment.index.bytes": "4096"}


def kafka_dumps(files: Iterable[Path], *options: str) -> dict[str, str]:
    """Return the output of the tool by file, without the line 'Dumping FILE'."""
    done = run_tool(TOOLS + "DumpLogSegments", *options, "--files", ",".join(map(str, files)))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Exception" not in done.stderr, done.stderr[-2000:]
    parts = re.split(r"^Dumping (.+)\n", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def partition_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partition of several segments: all codecs, idempotent and transactional producers, aborts and commits."""
    folder = tmp_path_factory.mktemp("data")
    config = BrokerConfig()
    manager = LogManager([folder], VirtualClock(NOW_MS), config)
    topic = TopicLogs("orders", uuid.uuid4(), 1, config.topic_configs(SETTINGS))
    manager.start([topic], run_threads=False)
    log = manager.partition("orders", 0)
    randomness = random.Random(11)

    def append(count: int, codec: int = 0, *, is_client: bool = True, time: int = 0, **producer: Any) -> None:
        builder = RecordBatchBuilder(codec, **producer)
        for i in range(count):
            value = randomness.randbytes(randomness.randrange(200)) + b"a" * 50
            builder.append(b"key", value, NOW_MS + time + i, [("h", b"x")])
        result = log.append(builder.build(), is_client=is_client)
        assert result.error == 0, result

    def end(producer_id: int, commit: bool) -> None:
        builder = RecordBatchBuilder(producer_id=producer_id, producer_epoch=0, transactional=True, control=True)
        builder.append(bytes((0, 0, 0, commit)), bytes(6), NOW_MS)
        assert log.append(builder.build(), is_client=False).error == 0

    sequence = 0
    for i in range(60):
        append(5, i % 5, time=i * 100)
        append(3, producer_id=7, producer_epoch=0, base_sequence=sequence, time=i * 100)
        sequence += 3
        if i % 20 == 10:
            log.roll()
        if i in (5, 25):
            for producer_id in (8, 9):
                producer = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True}
                append(2, base_sequence=0 if i == 5 else 2, is_client=False, **producer)
            end(8, commit=False)
            append(1)
            end(9, commit=True)
    manager.close()
    return folder / "orders-0"


def test_batches_are_read_without_fault(partition_folder: Path) -> None:
    """Kafka reads every batch as valid, with the same fields as kbroker's reader."""
    logs = sorted(partition_folder.glob("*.log"))
    assert len(logs) >= 4
    dumps = kafka_dumps(logs)
    for path in logs:
        theirs = re.findall(r"^baseOffset: .*$", dumps[str(path)], flags=re.MULTILINE)
        ours = [row for row in dump_file(path) if row["kind"] == "batch"]
        assert len(theirs) == len(ours) > 0
        for line, row in zip(theirs, ours, strict=True):
            found = dict(re.findall(r"(\w+): (\S+)", line))
            assert found.pop("isvalid") == "true"
            assert found.pop("deleteHorizonMs") == "OptionalLong.empty"
            assert found == {key: str(row[key]).lower() for key in found}


def test_records_are_read_without_fault(partition_folder: Path) -> None:
    """Kafka reads every record of every codec, without gaps in the offsets."""
    logs = sorted(partition_folder.glob("*.log"))
    dumps = kafka_dumps(logs, "--deep-iteration", "--print-data-log")
    seen = []
    for path in logs:
        seen += [int(offset) for offset in re.findall(r"^\| offset: (\d+)", dumps[str(path)], flags=re.MULTILINE)]
        ours = [row["offset"] for row in dump_file(path, records=True) if row["kind"] == "record"]
        assert seen[-len(ours) :] == ours
    assert seen == list(range(len(seen)))
    text = "".join(dumps.values())
    assert text.count("endTxnMarker: ABORT") == text.count("endTxnMarker: COMMIT") == 2
    assert "non-consecutive" not in text


def test_indexes_are_sound(partition_folder: Path) -> None:
    """Kafka's checks of the indexes against the log find no fault."""
    files = sorted(p for p in partition_folder.iterdir() if p.suffix in (".index", ".timeindex"))
    assert any(list(dump_file(p)) for p in files if p.suffix == ".index")
    assert any(list(dump_file(p)) for p in files if p.suffix == ".timeindex")
    for options in ((), ("--verify-index-only",), ("--index-sanity-check",)):
        text = "".join(kafka_dumps(files, *options).values())
        for fault in ("mismatch", "Mismatch", "out of order", "Out of order", "not found", "corrupt", "Indexed offset"):
            assert fault not in text, text[-3000:]
    for path, text in kafka_dumps([p for p in files if p.suffix == ".index"]).items():
        theirs = [(int(o), int(p)) for o, p in re.findall(r"^offset: (\d+) position: (\d+)", text, flags=re.MULTILINE)]
        assert theirs == [(row["offset"], row["position"]) for row in dump_file(path)]


def test_transaction_indexes_and_snapshots_are_sound(partition_folder: Path) -> None:
    """Kafka reads the same aborted transactions and producer states as kbroker."""
    files = sorted(p for p in partition_folder.iterdir() if p.suffix in (".txnindex", ".snapshot"))
    assert {p.suffix for p in files} == {".txnindex", ".snapshot"}
    aborted = 0
    for path, text in kafka_dumps(files).items():
        theirs = [line for line in text.splitlines() if line.startswith(("producerId: ", "version: "))]
        ours = list(dump_file(path))
        assert len(theirs) == len(ours)
        by_producer = {int(re.findall(r"producerId: (\d+)", line)[0]): line for line in theirs}
        for row in ours:
            found = dict(re.findall(r"(\w+): (\S+)", by_producer[row["producerId"]]))
            for key in ("lastTimestamp", "firstSequence", "lastSequence", "lastOffset", "offsetDelta", "firstOffset"):
                if row.get(key) is not None:
                    assert found.get(key) == str(row[key]), (path, key)
        aborted += len(ours) if path.endswith(".txnindex") else 0
    assert aborted == 2


def test_metadata_records_are_read_as_written(tmp_path: Path) -> None:
    """Kafka reads each version of each metadata record in a log and a snapshot with the same fields as kbroker."""
    tables = json.loads((FOLDER / "metadata.json").read_text(encoding="utf-8"))
    randomness, records = random.Random(5), []
    for name, table in tables.items():
        first, last = data_versions(name)
        for version in range(first, last + 1):
            records += [MetadataRecord(name, version, random_body(randomness, table, version)) for _ in range(8)]
    log, snapshot = tmp_path / f"{0:020}.log", tmp_path / snapshot_name(100, 3)
    voters = Voters((Voter(1, uuid.uuid4(), (VoterEndpoint("CONTROLLER", "h", 9093),), 0, 1),))
    control = build_control([LeaderChange(1, (1, 2), (2,)), KRaftVersion(1), voters], 0, 3, NOW_MS)
    log.write_bytes(control + build_records(records, 3, 3, NOW_MS))
    write_snapshot(snapshot, records, NOW_MS, last_contained_log_timestamp_ms=5, control=[KRaftVersion(1), voters])
    for path, text in kafka_dumps([log, snapshot], "--cluster-metadata-decoder").items():
        rows = dump_file(path, records=True, payload=record_json)
        ours = [describe(row).replace("deleteHorizonMs: none", "deleteHorizonMs: OptionalLong.empty") for row in rows]
        theirs = text.splitlines()[1:]
        assert len(ours) == len(theirs)
        assert sum(" payload: {" in line for line in theirs) == len(records)
        for mine, their in zip(ours, theirs, strict=True):
            (start, _, value), (expected, _, their_value) = (line.partition(" payload: ") for line in (mine, their))
            assert start == expected
            assert bool(value) == bool(their_value)
            assert not value or json.loads(value) == json.loads(their_value)  # Java prints large numbers differently


def test_our_own_check_agrees(partition_folder: Path) -> None:
    """`verify` finds no fault in files that Kafka reads without fault."""
    assert verify(partition_folder) == []
