"""Tools for the files of a partition: Kafka's output, and each damaged place."""

import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.codec.crc32c import crc32c
from kbroker.log import checkpoints, clean_shutdown
from kbroker.log.folder_lock import FolderLock, FolderLockedError
from kbroker.log.tools.batch_file import BatchFile
from kbroker.log.tools.dump import UnknownFileError, describe, dump_file, snapshot_fault
from kbroker.log.tools.verify import verify
from kbroker.protocol.records import RecordBatchBuilder
from tests.native.producer_state import ProducerStateManager
from tests.support.errors import raising


def batch(
    base: int,
    count: int = 1,
    *,
    payload: bytes = b"records",
    attributes: int = 0,
    pid: int = -1,
    epoch: int = -1,
    seq: int = -1,
    time: int = 1000,
    leader_epoch: int = 0,
) -> bytes:
    body = struct.pack(">hiqqqhii", attributes, count - 1, time, time + count - 1, pid, epoch, seq, count) + payload
    return struct.pack(">qiibI", base, len(body) + 9, leader_epoch, 2, crc32c(body)) + body


def marker(base: int, pid: int, epoch: int, control_type: int, coordinator_epoch: int = 5) -> bytes:
    key, value = struct.pack(">hh", 0, control_type), struct.pack(">hi", 0, coordinator_epoch)
    record = b"\0\0\0" + b"\x08" + key + b"\x0c" + value + b"\0"
    return batch(base, payload=bytes([len(record) * 2]) + record, attributes=0x30, pid=pid, epoch=epoch)


def segment(folder: Path, base: int, *batches: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{base:020}.log"
    path.write_bytes(b"".join(batches))
    return path


def test_log_rows_have_kafkas_names(tmp_path: Path) -> None:
    """Each batch is a row with the names and values of Kafka's tool."""
    path = segment(tmp_path, 7, batch(7, 3, pid=9, epoch=1, seq=2**31 - 2, attributes=0x12, leader_epoch=4), batch(10))
    first, second = dump_file(path)
    assert describe(first) == (
        "baseOffset: 7 lastOffset: 9 count: 3 baseSequence: 2147483646 lastSequence: 0 producerId: 9 producerEpoch: 1 "
        "partitionLeaderEpoch: 4 isTransactional: true isControl: false deleteHorizonMs: none position: 0 "
        f"CreateTime: 1002 size: 68 magic: 2 compresscodec: snappy crc: {first['crc']} isvalid: true"
    )
    assert (second["baseOffset"], second["position"], second["lastSequence"]) == (10, 68, -1)


def test_marker_is_shown(tmp_path: Path) -> None:
    """A control batch shows commit or abort and the coordinator's epoch; malformed contents are shown as damage."""
    path = segment(tmp_path, 0, marker(0, 9, 1, 0), marker(1, 9, 1, 1), batch(2, attributes=0x30), batch(3))
    rows = list(dump_file(path))
    assert [r["kind"] for r in rows] == ["batch", "record", "batch", "record", "batch", "damage", "batch"]
    assert [(r["endTxnMarker"], r["coordinatorEpoch"]) for r in rows if r["kind"] == "record"] == [
        ("ABORT", 5),
        ("COMMIT", 5),
    ]


def test_control_records_of_a_metadata_log_are_shown(tmp_path: Path) -> None:
    """Control records of unknown types, and unreadable ones, are shown too."""
    builder = RecordBatchBuilder(control=True)
    for key, value in [
        (b"\0\0\0\5", b"\0\0\0\1\0"),
        (b"\0\0\0\2", b"\0\0\0\0\0\1\2\0\0\0\1\0\1\0"),
        (b"\0\0\0\3", b""),
        (b"\0\0\0\7", b""),
        (b"\0", b""),
    ]:
        builder.append(key, value, 1000)
    rows = list(dump_file(segment(tmp_path, 0, builder.build())))
    assert [describe(row).partition("headerKeys: [] ")[2] for row in rows[1:]] == [
        'KRaftVersion {"version":0,"kRaftVersion":1}',
        'LeaderChange: {"version":0,"leaderId":1,"voters":[{"voterId":1}],"grantingVoters":[]}',
        "SnapshotHeader UNREADABLE: INVALID_REQUEST: Version: 2 bytes needed, 0 left at byte 0 of 0",
        "controlType: UNKNOWN(7)",
        "controlType: UNREADABLE",
    ]


@pytest.mark.parametrize("codec", range(5))
def test_records_are_shown_on_request(tmp_path: Path, codec: int) -> None:
    """Records have offset, timestamp, sequence, header names and text, with any codec."""
    builder = RecordBatchBuilder(codec, base_offset=5, producer_id=3, producer_epoch=0, base_sequence=2**31 - 1)
    builder.append(b"k", b"v\xff", 1000, [("h", b"x")])
    builder.append(None, None, 1001)
    path = segment(tmp_path, 5, builder.build())
    assert [r["kind"] for r in dump_file(path)] == ["batch"]
    assert [describe(r) for r in list(dump_file(path, records=True))[1:]] == [
        "| offset: 5 CreateTime: 1000 keySize: 1 valueSize: 2 sequence: 2147483647 headerKeys: [h] "
        "key: k payload: v\\xff",
        "| offset: 6 CreateTime: 1001 keySize: -1 valueSize: -1 sequence: 0 headerKeys: []",
    ]


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"\0" * 40, "40 bytes left"),
        (b"\0" * 70, "magic 0"),
        (batch(1)[:-1], "batch of 68 bytes, 67 are left"),
        (struct.pack(">qiibI", 1, -5, 0, 2, 0) + bytes(60), "length -5"),
        (struct.pack(">qiibI", 1, 2**31 - 1, 0, 2, 0) + bytes(60), "bytes, 81 are left"),
        (batch(-3), "impossible offsets"),
    ],
)
def test_dump_ends_at_damage(tmp_path: Path, tail: bytes, message: str) -> None:
    """Bytes that are not a batch are reported with their position after the batches before them."""
    path = segment(tmp_path, 0, batch(0), tail)
    rows = list(dump_file(path))
    assert [r["kind"] for r in rows] == ["batch", "damage"]
    assert rows[1]["position"] == 68
    assert message in rows[1]["message"]


def test_wrong_checksum_is_shown_and_passed(tmp_path: Path) -> None:
    """A batch with a wrong checksum is marked, and the next batch is read."""
    damaged = bytearray(batch(0))
    damaged[-1] ^= 1
    rows = list(dump_file(segment(tmp_path, 0, bytes(damaged), batch(1))))
    assert [r["isvalid"] for r in rows] == [False, True]


def test_indexes(tmp_path: Path) -> None:
    """Entries have whole offsets, and the zeros of a preallocated index are omitted."""
    (tmp_path / f"{100:020}.index").write_bytes(struct.pack(">iiii", 5, 700, 9, 1500) + bytes(80))
    (tmp_path / f"{100:020}.timeindex").write_bytes(struct.pack(">qi", 5000, 3) + bytes(120))
    (tmp_path / f"{100:020}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 9, 101, 109, 105))
    assert [(r["offset"], r["position"]) for r in dump_file(tmp_path / f"{100:020}.index")] == [(105, 700), (109, 1500)]
    assert [(r["timestamp"], r["offset"]) for r in dump_file(tmp_path / f"{100:020}.timeindex")] == [(5000, 103)]
    (row,) = dump_file(tmp_path / f"{100:020}.txnindex")
    assert describe(row) == "version: 0 producerId: 9 firstOffset: 101 lastOffset: 109 lastStableOffset: 105"
    (tmp_path / f"{100:020}.txnindex").write_bytes(bytes(35))
    assert [r["kind"] for r in dump_file(tmp_path / f"{100:020}.txnindex")] == ["txn_index", "damage"]


def test_snapshot(tmp_path: Path) -> None:
    """A snapshot of the broker is shown; a damaged one is one row of damage."""
    state, path = ProducerStateManager(), tmp_path / f"{5:020}.snapshot"
    state.append(9, 2, 0, 3, record_count=2, timestamp_ms=77, transactional=True)
    state.write_snapshot(path)
    (row,) = dump_file(path)
    assert describe(row) == (
        "producerId: 9 producerEpoch: 2 coordinatorEpoch: -1 currentTxnFirstOffset: 3 lastTimestamp: 77 "
        "firstSequence: 0 lastSequence: 1 lastOffset: 4 offsetDelta: 1"
    )
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert [r["kind"] for r in dump_file(path)] == ["damage"]


def test_state_files_and_unknown_names(tmp_path: Path) -> None:
    """Checkpoints are shown, and the error for a file of another kind has its name."""
    for kind in ("recovery-point-offset", "log-start-offset", "replication-offset", "cleaner-offset"):
        path = tmp_path / f"{kind}-checkpoint"
        checkpoints.offset_checkpoint(path).write({("t", 0): 5})
        assert [describe(r) for r in dump_file(path)] == ["topic: t partition: 0 offset: 5"]
    with pytest.raises(UnknownFileError, match=r"x\.txt"):
        dump_file(tmp_path / "x.txt")
    with pytest.raises(UnknownFileError, match="20 digits"):
        list(dump_file(tmp_path / "x.log"))


def test_whole_folder_has_no_findings(tmp_path: Path) -> None:
    """A sound folder has no findings; a compacted partition may have gaps."""
    partition = tmp_path / "t-0"
    segment(partition, 0, batch(0, 3), batch(5))
    log = segment(partition, 6, batch(6), batch(7))
    log.with_suffix(".index").write_bytes(struct.pack(">ii", 1, 68) + bytes(80))
    log.with_suffix(".timeindex").write_bytes(struct.pack(">qi", 1000, 0) + struct.pack(">qi", 1001, 1))
    checkpoints.offset_checkpoint(tmp_path / "recovery-point-offset-checkpoint").write({("t", 0): 5})
    checkpoints.offset_checkpoint(tmp_path / "cleaner-offset-checkpoint").write({("t", 0): 5})
    assert verify(tmp_path) == verify(partition) == []


def test_torn_tail_is_distinguished_from_damage(tmp_path: Path) -> None:
    """An unfinished batch at the end of the log is a torn tail, and in a sealed segment it is damage."""
    segment(tmp_path / "t-0", 0, batch(0), batch(1)[:50])
    segment(tmp_path / "t-1", 0, batch(0), batch(1)[:50])
    segment(tmp_path / "t-1", 5, batch(5))
    torn, sealed = verify(tmp_path)
    assert (torn.path.parent.name, torn.position, torn.offset, torn.is_torn_tail) == ("t-0", 68, 1, True)
    assert (sealed.path.parent.name, sealed.position, sealed.offset, sealed.is_torn_tail) == ("t-1", 68, 1, False)


def describe_offsets(log: Path) -> list[tuple[int, int, int]]:
    """Return the first offset, last offset and record count of each batch."""
    with closing(BatchFile(log)) as file:
        at, found = 0, []
        while at < file.size_bytes:
            one = file.batch_at(at)
            assert one.is_valid
            found.append((one.base_offset, one.last_offset, one.record_count))
            at += one.size_bytes
        return found


def test_repair_cuts_the_place_and_keeps_the_rest(tmp_path: Path) -> None:
    """Repair removes and keeps aside only the damaged batch; the next start rebuilds derived files."""
    partition = tmp_path / "t-0"
    damaged = bytearray(batch(1, 2))
    damaged[-2] ^= 0x40
    log = segment(partition, 0, batch(0), bytes(damaged), batch(3))
    segment(partition, 4, batch(4))
    log.with_suffix(".index").write_bytes(struct.pack(">ii", 3, 136))
    (partition / f"{4:020}.snapshot").write_bytes(b"")
    clean_shutdown.write_mark(tmp_path)
    recovery = checkpoints.offset_checkpoint(tmp_path / "recovery-point-offset-checkpoint")
    recovery.write({("t", 0): 4, ("u", 0): 9})

    (found, *_) = verify(tmp_path)
    assert (found.path, found.position, found.size_bytes, found.offset, found.repair) == (log, 68, 68, 1, "")
    assert log.read_bytes() == batch(0) + bytes(damaged) + batch(3)

    assert "cut 68 bytes" in [f.repair for f in verify(tmp_path, repair=True)]
    filler = log.read_bytes()[68:-68]
    assert log.read_bytes() == batch(0) + filler + batch(3)
    assert describe_offsets(log) == [(0, 0, 1), (1, 2, 0), (3, 3, 1)]
    assert (partition / f"{log.name}.68.damaged").read_bytes() == bytes(damaged)
    assert not log.with_suffix(".index").exists()
    assert not list(partition.glob("*.snapshot"))
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert recovery.read() == {("u", 0): 9}
    assert verify(tmp_path) == []


def test_a_repair_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment is unchanged, and no file of the attempt takes up disk space."""
    damaged = bytearray(batch(1))
    damaged[-2] ^= 0x40
    content = batch(0) + bytes(damaged) + batch(2)
    log = segment(tmp_path / "t-0", 0, content)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "sync_descriptor", raising(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            verify(tmp_path, repair=True)
    assert log.read_bytes() == content
    assert sorted(path.name for path in log.parent.iterdir()) == [log.name, f"{log.name}.68.damaged"]


def test_a_repair_that_fails_after_its_first_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start reads the partition again, whose files are no longer those of a clean stop."""
    damaged = bytearray(batch(1))
    damaged[-2] ^= 0x40
    log = segment(tmp_path / "t-0", 0, batch(0), bytes(damaged), batch(2))
    segment(tmp_path / "t-0", 3, batch(3), bytes(damaged))
    clean_shutdown.write_mark(tmp_path)
    recovery = checkpoints.offset_checkpoint(tmp_path / "recovery-point-offset-checkpoint")
    recovery.write({("t", 0): 4, ("u", 0): 9})
    write = checkpoints.write_atomically

    def write_or_fail(path: Path, *rest: Any) -> None:
        if path.name.startswith(f"{3:020}"):
            raise OSError(5, "Input/output error")
        write(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_atomically", write_or_fail)
        with pytest.raises(OSError, match="Input/output error"):
            verify(tmp_path, repair=True)
    assert log.read_bytes() == batch(0) + batch(2)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert recovery.read() == {("u", 0): 9}


@pytest.mark.parametrize(
    ("batches", "position"),
    [
        ([batch(0), batch(0), batch(1)], 68),
        ([batch(5), batch(3), batch(6)], 68),
        ([batch(0), bytes(4096), batch(1)], 68),
        ([b"garbage", batch(0)], 0),
    ],
    ids=["twice", "backwards", "zeroed page", "garbage before"],
)
def test_order_and_garbage_are_found_and_cut(tmp_path: Path, batches: list[bytes], position: int) -> None:
    """A duplicate batch, a batch of a lower offset, and foreign bytes are one finding each; other batches stay."""
    # prevents the filling of gaps
    checkpoints.offset_checkpoint(tmp_path / "cleaner-offset-checkpoint").write({("t", 0): 0})
    log = segment(tmp_path / "t-0", 0, *batches)
    (found,) = verify(tmp_path, repair=True)
    assert found.position == position
    assert verify(tmp_path) == []
    kept = b"".join(b for i, b in enumerate(batches) if sum(map(len, batches[:i])) != position)
    assert log.read_bytes() == kept


@pytest.mark.parametrize(
    ("suffix", "content", "problem"),
    [
        (".index", struct.pack(">iiii", 1, 68, 1, 68), "offset 1 after 1"),
        (".index", struct.pack(">ii", 1, 6800), "past the segment"),
        (".index", struct.pack(">ii", 99, 68), "not in the segment"),
        (".index", b"\1" * 7, "multiple of 8"),
        (".timeindex", struct.pack(">qiqi", 9, 0, 8, 1), "timestamp 8 after 9"),
        (".txnindex", struct.pack(">hqqqq", 3, 0, 0, 0, 0), "version 3"),
    ],
)
def test_damaged_index_is_removed_by_repair(tmp_path: Path, suffix: str, content: bytes, problem: str) -> None:
    """An invalid index is found and removed by a repair, and rebuilt by the next start."""
    log = segment(tmp_path / "t-0", 0, batch(0), batch(1))
    log.with_suffix(suffix).write_bytes(content)
    (found,) = verify(tmp_path)
    assert problem in found.problem
    verify(tmp_path, repair=True)
    assert not log.with_suffix(suffix).exists()
    assert verify(tmp_path) == []


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """Any single flipped bit is found, except in the leader epoch, which no checksum covers."""
    batches = [batch(0, 2), batch(2), batch(3, payload=b"last")]
    good = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    log = segment(tmp_path / "t-0", 0, good)
    for bit in range(len(good) * 8):
        if any(start + 12 <= bit // 8 < start + 16 for start in starts):
            continue
        damaged = bytearray(good)
        damaged[bit // 8] ^= 0x80 >> bit % 8
        log.write_bytes(damaged)
        found = verify(tmp_path)
        offset_raised = any(start <= bit // 8 < start + 8 for start in starts) and not found
        assert found or offset_raised, f"bit {bit % 8} of byte {bit // 8}"  # a higher offset looks like a gap


def test_repair_is_refused_while_a_broker_runs(tmp_path: Path) -> None:
    """A repair needs the lock of the folder; a verification does not."""
    segment(tmp_path / "t-0", 0, batch(0)[:-1])
    lock = FolderLock(tmp_path)
    assert len(verify(tmp_path)) == 1
    with pytest.raises(FolderLockedError, match="in use by this process"):
        verify(tmp_path, repair=True)
    with pytest.raises(FolderLockedError):
        verify(tmp_path / "t-0", repair=True)
    lock.release()
    assert verify(tmp_path, repair=True)[0].repair == "cut 67 bytes"


def test_damaged_checkpoints_are_found(tmp_path: Path) -> None:
    """Damaged checkpoints are removed by a repair; meta.properties is not."""
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n9\n")
    (tmp_path / "meta.properties").write_text("version=9\n")
    assert [f.path.name for f in verify(tmp_path)] == ["recovery-point-offset-checkpoint", "meta.properties"]
    verify(tmp_path, repair=True)
    assert [p.name for p in sorted(tmp_path.iterdir())] == [".lock", "meta.properties"]


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    log = segment(tmp_path / "t-0", 0, batch(0))
    with pytest.raises(NotADirectoryError, match=f"{log} is not a folder"):
        verify(log)


def test_segments_that_overlap(tmp_path: Path) -> None:
    """A batch of offsets that the next segment has is cut out of the earlier one."""
    first = segment(tmp_path / "t-0", 0, batch(0), batch(1, 3))
    second = segment(tmp_path / "t-0", 2, batch(2), batch(3))
    (found,) = verify(tmp_path)
    assert (found.path, found.position, found.offset) == (first, 68, 1)
    assert found.problem == "offsets 1 to 3 are not in 1 to 1"
    assert [one.repair for one in verify(tmp_path, repair=True)] == ["cut 68 bytes", "an empty batch fills the gap"]
    assert describe_offsets(first) == [(0, 0, 1), (1, 1, 0)]
    assert describe_offsets(second) == [(2, 2, 1), (3, 3, 1)]
    assert verify(tmp_path) == []


def test_a_gap_that_no_batch_can_fill(tmp_path: Path) -> None:
    """Offsets beyond the reach of a segment are reported, and nothing is changed by a repair."""
    last = 2**31 + 5
    log = segment(tmp_path / "t-0", 0, batch(0))
    segment(tmp_path / "t-0", last + 1, batch(last + 1))
    (finding,) = verify(tmp_path)
    assert (finding.path, finding.offset, finding.problem) == (log, 1, f"offsets 1 to {last} are missing")
    (finding,) = verify(tmp_path, repair=True)
    assert finding.repair == ""
    assert log.read_bytes() == batch(0)


def test_gaps_beside_a_damaged_checkpoint(tmp_path: Path) -> None:
    """Gaps are not reported while it is unknown whether the partition was compacted."""
    segment(tmp_path / "t-0", 0, batch(0), batch(5))
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n9\n")
    (found,) = verify(tmp_path)
    assert found.path.name == "cleaner-offset-checkpoint"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda data: data[:5], "5 bytes are too few"),
        (lambda data: b"\0\2" + data[2:], "version 2 is not 1"),
        (lambda data: data[:-1] + b"x", "the checksum does not match"),
        (lambda data: data[:2] + struct.pack(">I", crc32c(data[6:-8])) + data[6:-8], "1 entries do not take 48 bytes"),
    ],
)
def test_damaged_snapshots(tmp_path: Path, change: Callable[[bytes], bytes], fault: str) -> None:
    state, path = ProducerStateManager(), tmp_path / f"{5:020}.snapshot"
    state.append(9, 2, 0, 3, record_count=2, timestamp_ms=77, transactional=True)
    state.write_snapshot(path)
    assert snapshot_fault(path.read_bytes()) is None
    assert snapshot_fault(change(path.read_bytes())) == fault
