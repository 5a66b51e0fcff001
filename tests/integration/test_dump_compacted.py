"""Compacted segments as read by Apache Kafka's DumpLogSegments, compared with kbroker's reader."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.log._partition_log import PartitionLog
from kbroker.log.tools.dump import dump_file
from tests.integration.test_dump_log_segments import kafka_dumps
from tests.support.compaction import DAY_MS, compact, keyed, marker, records
from tests.support.log_files import NOW_MS, open_log

CONFIG = {"cleanup.policy": "compact", "segment.bytes": 60_000, "index.interval.bytes": 512}

Compacted = tuple[Path, PartitionLog]


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compacted]:
    """Partition that was compacted twice: all codecs, delete horizons, empty batches, an abort, merged segments."""
    folder = tmp_path_factory.mktemp("data") / "t-0"
    log = open_log(folder, config=CONFIG)
    randomness = random.Random(5)
    sequence = 0
    for i in range(600):
        pairs = [
            (b"%d" % randomness.randrange(150), randomness.randbytes(60) if randomness.random() < 0.8 else None)
            for _ in range(randomness.randrange(1, 6))
        ]
        assert log.append(keyed(*pairs, codec=i % 5, time_ms=NOW_MS + i)).error == 0
        if i % 7 == 0:
            options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
            assert log.append(keyed((b"p", b"x"), **options)).error == 0
            sequence += 1
        if i % 50 == 20:
            options = {"producer_id": 8, "producer_epoch": 0, "transactional": True}
            assert log.append(keyed((b"t%d" % i, b"x"), **options), is_client=False).error == 0
            assert log.append(marker(8, commit=i % 100 == 20), is_client=False).error == 0
    log.roll()
    end = log.log_end_offset
    assert compact(log).segments_before > 2
    compact(log, end)
    assert log.segments()[0].offset_entries > 10
    yield folder, log
    compact(log, end, now_ms=NOW_MS + DAY_MS)
    log.close()


def test_batches_and_records(compacted: Compacted) -> None:
    """Kafka reads every batch as valid with the written delete horizon, and every record at its offset."""
    folder, log = compacted
    logs = sorted(folder.glob("*.log"))
    dumps = kafka_dumps(logs, "--deep-iteration", "--print-data-log")
    seen, horizons = [], 0
    for path in logs:
        text = dumps[str(path)]
        theirs = re.findall(r"^baseOffset: .*$", text, flags=re.MULTILINE)
        ours = [row for row in dump_file(path) if row["kind"] == "batch"]
        assert len(theirs) == len(ours)
        for line, row in zip(theirs, ours, strict=True):
            found = dict(re.findall(r"(\w+): (\S+)", line))
            assert found.pop("isvalid") == "true"
            horizon = found.pop("deleteHorizonMs")
            assert horizon in ("OptionalLong.empty", f"OptionalLong[{NOW_MS + DAY_MS}]")
            horizons += horizon != "OptionalLong.empty"
            assert found == {key: str(row[key]).lower() for key in found}
        seen += [int(offset) for offset in re.findall(r"^\| offset: (\d+)", text, flags=re.MULTILINE)]
    assert seen == [row[0] for row in records(log)]
    assert horizons > 10


def test_indexes(compacted: Compacted) -> None:
    """Kafka's checks of the indexes against the log find no fault."""
    folder, _ = compacted
    files = sorted(p for p in folder.iterdir() if p.suffix in (".index", ".timeindex"))
    for options in ((), ("--verify-index-only",), ("--index-sanity-check",)):
        text = "".join(kafka_dumps(files, *options).values())
        for fault in ("mismatch", "Mismatch", "out of order", "Out of order", "not found", "corrupt", "Indexed offset"):
            assert fault not in text, text[-3000:]
