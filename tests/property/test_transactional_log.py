"""Transactions of a partition compared with a list of the writes, for readers of committed records.

They read the same records and stop at the same offset after rolls, truncation, stops of either kind and lost
transaction indexes.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker.log._partition_log import PartitionLog, active_producers
from kbroker.log.compaction._cleaner import Cleaner
from kbroker.protocol.records import iter_batches
from tests.support.closing import folder_until_end, scope
from tests.support.log_files import NOW_MS, batch, open_log
from tests.support.wire import split


@dataclass(frozen=True)
class Written:
    offset: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    commit: bool | None = None  # of a marker


@dataclass
class Model:
    log: list[Written] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return self.log[-1].offset + 1 if self.log else 0

    def epoch_of(self, producer_id: int) -> int:
        return next((w.epoch for w in reversed(self.log) if w.producer_id == producer_id), 0)

    def next_sequence(self, producer_id: int, epoch: int) -> int:
        of_epoch = (w for w in reversed(self.log) if (w.producer_id, w.epoch) == (producer_id, epoch))
        return next((w.sequence + 1 for w in of_epoch if w.commit is None), 0)

    def open(self) -> dict[int, int]:
        """Return the first offset of each open transaction."""
        found: dict[int, int] = {}
        for w in self.log:
            if w.commit is not None:
                found.pop(w.producer_id, None)
            elif w.producer_id >= 0:
                found.setdefault(w.producer_id, w.offset)
        return found

    def last_stable(self) -> int:
        return max(min(self.open().values(), default=self.end), self.start)

    def committed(self) -> list[int]:
        """Return the offsets of records below the last stable offset that belong to no aborted transaction."""
        visible: list[int] = []
        undecided: dict[int, list[int]] = {}
        for w in self.log:
            if w.commit is not None:
                offsets = undecided.pop(w.producer_id, [])
                visible += offsets if w.commit else []
            elif w.producer_id < 0:
                visible.append(w.offset)
            else:
                undecided.setdefault(w.producer_id, []).append(w.offset)
        return sorted(offset for offset in visible if self.start <= offset < self.last_stable())


def consumed(log: PartitionLog, start: int, max_bytes: int) -> list[int]:
    """Return the offsets that a consumer with isolation.level=read_committed reads."""
    seen: list[int] = []
    offset = start
    aborted_now: set[int] = set()
    while True:
        got = log.read(offset, max_bytes, isolation=1)
        assert got.error == 0
        data = b"".join(split(got.records))
        if not data:
            assert offset >= got.last_stable_offset
            return seen
        waiting = sorted(got.aborted, key=lambda row: row.first_offset)
        assert all(row.last_offset >= offset for row in waiting)
        aborted_now.clear()  # a consumer begins each fetch with the list in the response
        for b in iter_batches(data):
            while waiting and waiting[0].first_offset <= b.last_offset:
                aborted_now.add(waiting.pop(0).producer_id)
            if b.is_control:
                (row,) = b.records()
                if (row[2] or b"")[2:] == b"\0\0":
                    aborted_now.discard(b.producer_id)
            elif not (b.is_transactional and b.producer_id in aborted_now) and b.last_offset >= start:
                seen += [row[0] for row in b.records()]
            offset = b.last_offset + 1


PIDS = st.integers(0, 2)
APPENDS = (
    st.tuples(st.just("write"), PIDS),
    st.tuples(st.just("write"), PIDS),
    st.tuples(st.just("plain")),
    st.tuples(st.just("end"), PIDS, st.booleans(), st.sampled_from([0, 2])),
    st.tuples(st.just("roll")),
)
STEPS = st.one_of(
    *APPENDS,
    st.tuples(st.just("read"), st.integers(0, 60), st.sampled_from([1, 200, 1 << 20])),
    st.tuples(st.just("delete"), st.integers(0, 60)),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("crash without indexes")),
)


@settings(deadline=None, max_examples=120)
@given(st.lists(STEPS, max_size=40), st.booleans())
@scope()
def test_readers_see_committed_records_only(steps: list[tuple[Any, ...]], deletes: bool) -> None:
    """Readers see only committed records. ``deletes``: records are deleted too, from the beginning on."""
    folder, clock, model = folder_until_end(), VirtualClock(NOW_MS), Model()
    log = open_log(folder / "t-0", clock, config={"index.interval.bytes": 0})
    for step in steps:
        match step:
            case "write", pid:
                epoch = model.epoch_of(pid)
                sequence = model.next_sequence(pid, epoch)
                error, guard = log.start_verification(pid, epoch, sequence)
                assert (error, guard == 0) == (0, pid in model.open())
                data = batch(b"t", producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True)
                info = log.append(data, verification_guard=guard)
                assert (info.error, info.base_offset) == (0, model.end)
                model.log.append(Written(model.end, pid, epoch, sequence))
            case ("plain",):
                assert log.append(batch(b"p")).base_offset == model.end
                model.log.append(Written(model.end))
            case "end", pid, commit, version:
                epoch = model.epoch_of(pid) + (version == 2)
                info = log.append_end_marker(pid, epoch, 0, commit, transaction_version=version)
                assert (info.error, info.base_offset) == (0, model.end)
                model.log.append(Written(model.end, pid, epoch, commit=commit))
            case ("roll",):
                log.roll()
            case "read", offset, max_bytes if model.start <= offset <= model.end:
                assert consumed(log, offset, max_bytes) == [o for o in model.committed() if o >= offset]
            case "delete", offset if deletes and offset <= model.end:
                model.start = max(model.start, offset)
                assert log.delete_records(offset) == model.start
            case "reopen", clean:
                log.close(clean)
                log = open_log(
                    folder / "t-0", clock, config={"index.interval.bytes": 0}, clean=clean,
                    log_start_offset=model.start,
                )  # fmt: skip
            case ("crash without indexes",):
                log.close(clean=False)
                for name in (*(folder / "t-0").glob("*.txnindex"), *(folder / "t-0").glob("*.snapshot")):
                    name.unlink()
                log = open_log(folder / "t-0", clock, config={"index.interval.bytes": 0}, log_start_offset=model.start)
        assert (log.log_end_offset, log.last_stable_offset) == (model.end, model.last_stable())
        assert {
            row.producer_id: row.current_txn_first_offset
            for row in active_producers(log)
            if row.current_txn_first_offset >= 0
        } == model.open()
    assert consumed(log, model.start, 1 << 20) == model.committed()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(*APPENDS), max_size=40))
@scope()
def test_compaction_keeps_what_is_committed(steps: list[tuple[Any, ...]]) -> None:
    """Compaction keeps the last committed record of a key in the cleaned part and all records above that part.

    Open transactions and records above the last stable offset are not touched.
    """
    folder, clock, model = folder_until_end(), VirtualClock(NOW_MS), Model()
    log = open_log(folder / "t-0", clock, config={"cleanup.policy": "compact"})
    from tests.support.compaction import keyed

    for step in steps:
        match step:
            case "write", pid:
                epoch = model.epoch_of(pid)
                sequence = model.next_sequence(pid, epoch)
                data = keyed(
                    (b"k", b"t"), producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True
                )
                assert log.append(data).error == 0
                model.log.append(Written(model.end, pid, epoch, sequence))
            case ("plain",):
                assert log.append(keyed((b"k", b"p"))).error == 0
                model.log.append(Written(model.end))
            case "end", pid, commit, version:
                epoch = model.epoch_of(pid) + (version == 2)
                assert log.append_end_marker(pid, epoch, 0, commit, transaction_version=version).error == 0
                model.log.append(Written(model.end, pid, epoch, commit=commit))
            case ("roll",):
                log.roll()
    bases = [s.base_offset for s in log.segments()]
    limit = max(base for base in bases if base <= log.last_stable_offset)
    above = log.read(limit).records
    result = Cleaner(1 << 20).clean(log, 0, limit, now_ms=NOW_MS)
    assert result is not None
    committed = model.committed()
    below = [offset for offset in committed if offset < limit]
    assert consumed(log, 0, 1 << 20) == below[-1:] + [offset for offset in committed if offset >= limit]
    assert log.read(limit).records == above
    assert (log.log_end_offset, log.last_stable_offset) == (model.end, model.last_stable())
    before = active_producers(log)
    log.close(clean=False)
    for name in (*(folder / "t-0").glob("*.txnindex"), *(folder / "t-0").glob("*.snapshot")):
        name.unlink()
    log = open_log(folder / "t-0", clock, config={"cleanup.policy": "compact"})
    assert log.last_stable_offset == model.last_stable()
    assert [row[:2] for row in active_producers(log)] == [row[:2] for row in before]
    assert consumed(log, 0, 1 << 20) == below[-1:] + [offset for offset in committed if offset >= limit]
