"""The cleaner compared with a simple model: the last value of each key, with any events in between."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker.log._partition_log import PartitionLog
from kbroker.log.compaction._cleaner import Cleaner
from tests.support.closing import folder_until_end, scope
from tests.support.compaction import batches, keyed, marker, records
from tests.support.log_files import NOW_MS, base_of, crc_ok, open_log, read_all

RETENTION_MS = 1000
CONFIG = {"cleanup.policy": "compact", "segment.bytes": 900}
KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b""])
VALUES = st.one_of(st.none(), st.binary(max_size=60))
PAIRS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5)
ACTIONS = st.one_of(
    st.tuples(st.just("append"), PAIRS, st.integers(0, 4)),
    st.tuples(st.just("idempotent"), PAIRS, st.integers(0, 1)),
    st.tuples(st.just("transaction"), PAIRS, st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("clean"), st.sampled_from([1024, 1 << 16])),
    st.tuples(st.just("clean"), st.just(1 << 16)),
    st.tuples(st.just("crash"), st.integers(1, 40)),
    st.tuples(st.just("time"), st.integers(1, 2 * RETENTION_MS)),
    st.tuples(st.just("reopen"), st.booleans(), st.booleans()),
)


class Model:
    """Every record written, by offset, and the value that each key must have."""

    def __init__(self) -> None:
        self.written: dict[int, tuple[bytes, bytes | None]] = {}
        self.latest: dict[bytes, tuple[int, bytes | None]] = {}
        self.aborted: set[int] = set()
        self.markers: set[int] = set()

    def add(self, base: int, pairs: list[tuple[bytes, bytes | None]], aborted: bool = False) -> None:
        for offset, (key, value) in enumerate(pairs, base):
            self.written[offset] = (key, value)
            if aborted:
                self.aborted.add(offset)
            else:
                self.latest[key] = (offset, value)

    def check(self, log: PartitionLog) -> None:
        assert log.damage is None
        end = max([*self.written, *self.markers], default=-1) + 1
        assert log.log_end_offset == log.high_watermark == log.last_stable_offset == end
        found: dict[bytes, tuple[int, bytes | None]] = {}
        previous = -1
        for offset, key, value in records(log):
            assert offset > previous
            previous = offset
            if offset not in self.markers:
                assert (key, value) == self.written[offset]
                if offset not in self.aborted:
                    assert key is not None
                    found[key] = (offset, value)
        for key, latest in self.latest.items():
            assert found.get(key) == latest or (latest[1] is None and key not in found)
        data = read_all(log)
        assert all(map(crc_ok, data))
        spans = [(first, last) for first, last, _ in batches(log)]
        for offset in range(end):
            expected = next((first for first, last in spans if last >= offset), None)
            got = log.read(offset, 1)
            assert got.error == 0
            assert (base_of(got.records) if expected is not None else got.records) == (
                expected if expected is not None else b""
            )


def dropped_aborts_are_known(log: PartitionLog, model: Model) -> None:
    """Check that a remaining aborted record is in a listed aborted transaction of a read_committed read."""
    for data in read_all(log):
        first = base_of(data)
        left = [offset for offset, _, _ in records(log, first) if offset in model.aborted][:1]
        if left:
            listed = log.read(left[0], 1 << 20, isolation=1).aborted
            assert any(entry.first_offset <= left[0] <= entry.last_offset for entry in listed)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=30), st.sampled_from([0, 200, 4096]), st.booleans())
@scope()
def test_last_values_survive(actions: list[tuple[Any, ...]], interval: int, in_memory: bool) -> None:
    """Each key has its last value after any mix of appends, rolls, cleanings, kills during a cleaning, and reopenings.

    No remaining record has moved or changed, and every offset can be read.
    """
    config = {**CONFIG, "index.interval.bytes": interval}
    folder = folder_until_end()
    clock = VirtualClock(NOW_MS)

    def reopen(clean: bool, point: int) -> PartitionLog:
        return open_log(folder / "t-0", clock, config=config, clean=clean, recovery_point=point)

    log = open_log(None if in_memory else folder / "t-0", clock, config=config, in_memory=in_memory)
    model = Model()
    first_dirty, now_ms, sequences = 0, NOW_MS, [0, 0]
    for name, *given_ in actions:
        end = log.log_end_offset
        if name == "append":
            pairs, codec = given_
            assert log.append(keyed(*pairs, codec=codec)).error == 0
            model.add(end, pairs)
        elif name == "idempotent":
            pairs, who = given_
            options = {"producer_id": 10 + who, "producer_epoch": 0, "base_sequence": sequences[who]}
            assert log.append(keyed(*pairs, **options)).error == 0
            sequences[who] += len(pairs)
            model.add(end, pairs)
        elif name == "transaction":
            pairs, commit = given_
            options = {"producer_id": 20, "producer_epoch": 0, "transactional": True}
            assert log.append(keyed(*pairs, **options), is_client=False).error == 0
            model.add(end, pairs, aborted=not commit)
            assert log.append(marker(20, commit=commit), is_client=False).error == 0
            model.markers.add(end + len(pairs))
        elif name == "roll":
            log.roll()
        elif name == "clean":
            cleaner = Cleaner(given_[0])
            bound = log.segments()[-1].base_offset
            if bound >= first_dirty:
                done = cleaner.clean(log, first_dirty, bound, now_ms=now_ms, delete_retention_ms=RETENTION_MS)
                assert done is not None
                assert first_dirty <= done.end_offset <= bound
                first_dirty = done.end_offset
                sizes = [s.size_bytes for s in log.segments()]
                assert max(sizes) <= 900
        elif name == "crash" and not in_memory:
            cleaner = Cleaner(1 << 16)
            cleaner._crash_before(given_[0])
            bound = log.segments()[-1].base_offset
            if bound >= first_dirty:
                done = cleaner.clean(log, first_dirty, bound, now_ms=now_ms, delete_retention_ms=RETENTION_MS)
                log.close(clean=False)
                log = reopen(False, 0)
                assert not [p for p in (folder / "t-0").iterdir() if p.suffix in (".cleaned", ".swap", ".deleted")]
        elif name == "time":
            now_ms += given_[0]
        elif name == "reopen" and not in_memory:
            clean, keep_point = given_
            point = log.flushed_offset if keep_point else 0
            log.close(clean=clean)
            log = reopen(clean, point)
        model.check(log)
        dropped_aborts_are_known(log, model)
