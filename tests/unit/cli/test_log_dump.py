"""`kbroker log dump` of a metadata log, compared with the output of Kafka's tool."""

import json
from pathlib import Path

import pytest

from kbroker.metadata.records.batches import build_records
from kbroker.metadata.records.metadata_record import metadata_record
from kbroker.protocol.records import RecordBatchBuilder
from tests.support.cli import run
from tests.support.kafka_metadata_log import FILES, LOG, kafka_metadata_log

KAFKA = kafka_metadata_log()
DECODER = "--cluster-metadata-decoder"


def kafka_lines(name: str) -> list[str]:
    """Return Kafka's dump of a file, without the first line, which repeats the name."""
    return KAFKA[name + ".txt"].decode().replace("OptionalLong.empty", "none").splitlines()[1:]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).write_bytes(KAFKA[name])
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_dump_is_that_of_kafka(folder: Path, name: str) -> None:
    """Every line of batches, control records and metadata records is equal."""
    assert run(None, "log", "dump", DECODER, str(folder / name)).stdout.splitlines() == kafka_lines(name)


def test_a_dump_without_metadata_of_records(folder: Path) -> None:
    """Control records are skipped too, as in Kafka, but without Kafka's empty lines."""
    lines = [line for line in kafka_lines(LOG) if not line.startswith("|") or " payload: " in line]
    expected = ["| " + line[line.index("payload: ") :] if line.startswith("|") else line for line in lines]
    done = run(None, "log", "dump", DECODER, "--skip-record-metadata", str(folder / LOG))
    assert done.stdout.splitlines() == expected


def test_a_dump_as_json(folder: Path) -> None:
    """Record values are JSON objects."""
    done = run(None, "log", "dump", DECODER, "--json", str(folder / LOG))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[1]["LeaderChange"]["leaderId"] == 1
    payloads = [row["payload"] for row in rows if "payload" in row]
    assert payloads == [
        json.loads(line.partition(" payload: ")[2]) for line in kafka_lines(LOG) if " payload: " in line
    ]


def test_a_record_that_cannot_be_decoded_is_skipped(tmp_path: Path) -> None:
    """The output has the reason, and the next record is printed."""
    path = tmp_path / "00000000000000000000.log"
    builder = RecordBatchBuilder()
    builder.append(None, b"\1\6\0\0", 1000)
    builder.append(None, b"\1\2\0", 1000)
    path.write_bytes(builder.build() + build_records([metadata_record("NoOpRecord", {})], 2, 0, 1000))
    lines = run(None, "log", "dump", DECODER, "--skip-record-metadata", str(path)).stdout.splitlines()
    assert lines[1].startswith("| payload: Error at 0, skipping. a metadata record has type 6, supported are")
    assert lines[2].startswith("| payload: Error at 1, skipping. INVALID_REQUEST: Name")
    assert lines[4] == '| payload: {"type":"NO_OP_RECORD","version":0,"data":{}}'


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    """A header and a folder may have any bytes as their names; a replacement character is printed for them."""
    folder = tmp_path / "\udcff"
    folder.mkdir()
    path = folder / "00000000000000000000.log"
    builder = RecordBatchBuilder()
    builder.append(b"key", b"value", 1000, [("a\udcff", b"1")])
    path.write_bytes(builder.build())
    *_, text = run(None, "log", "dump", "--print-data-log", str(path)).stdout.splitlines()
    assert "headerKeys: [a\ufffd]" in text
    *_, line = run(None, "log", "dump", "--print-data-log", "--json", str(path)).stdout.splitlines()
    row = json.loads(line)
    assert (row["file"], row["headerKeys"]) == (f"{tmp_path}/\ufffd/{path.name}", ["a\ufffd"])


def test_records_are_printed_as_text(tmp_path: Path) -> None:
    """Keys and values of any log are printed, with and without the metadata."""
    path = tmp_path / "00000000000000000000.log"
    builder = RecordBatchBuilder()
    builder.append(b"k", b"v", 1000)
    builder.append(None, None, 1000)
    path.write_bytes(builder.build())
    assert len(run(None, "log", "dump", str(path)).stdout.splitlines()) == 1
    assert run(None, "log", "dump", "--print-data-log", str(path)).stdout.splitlines()[1:] == [
        "| offset: 0 CreateTime: 1000 keySize: 1 valueSize: 1 sequence: -1 headerKeys: [] key: k payload: v",
        "| offset: 1 CreateTime: 1000 keySize: -1 valueSize: -1 sequence: -1 headerKeys: []",
    ]
    done = run(None, "log", "dump", "--print-data-log", "--skip-record-metadata", str(path))
    assert done.stdout.splitlines()[1:] == ["| key: k payload: v", "| "]
