"""A partition compared with a simple model: a list of batches."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._core.clock import VirtualClock
from kbroker.log._partition_log import PartitionLog
from tests.support.closing import folder_until_end, scope
from tests.support.log_files import NOW_MS, base_of, batch, crc_ok, open_log, read_all

ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 300)),
    st.tuples(st.just("append"), st.integers(1, 2), st.integers(0, 30)),
    st.tuples(st.just("roll")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("retention"), st.integers(0, 1500)),
    st.tuples(st.just("delete_records"), st.floats(0, 1)),
    st.tuples(st.just("reopen"), st.booleans(), st.booleans()),
    st.tuples(st.just("tear"), st.integers(1, 200)),
    st.tuples(st.just("fail")),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(ACTIONS, max_size=25), st.sampled_from([0, 100, 4096]), st.sampled_from([24, 200, 10_000]))
@scope()
def test_log_is_a_list_of_batches(actions: list[tuple[Any, ...]], interval: int, index_bytes: int) -> None:
    """A log has the batches of the model after any appends, rolls, retention, torn writes, failures and reopenings."""
    config = {
        "segment.bytes": 800,
        "index.interval.bytes": interval,
        "segment.index.bytes": index_bytes,
        "retention.ms": -1,
    }
    folder = folder_until_end()
    clock = VirtualClock(NOW_MS)
    log = open_log(folder / "t-0", clock, config=config)
    model: list[tuple[int, int, int]] = []  # base, end, size of value
    start = end = 0
    for name, *given_ in actions:
        if name == "append":
            count, size = given_
            data = batch(*[bytes([size % 256]) * size] * count)
            assert log.append(data).base_offset == (end if len(data) <= 800 else -1)
            if log.log_end_offset != end:
                model.append((end, end + count, size))
                end += count
        elif name == "roll":
            log.roll()
        elif name == "flush":
            assert log.flush() == end
        elif name == "retention":
            log.update_config({**config, "retention.bytes": given_[0]})
            kept_bytes = min(given_[0], live_bytes(log))
            log.apply_retention(NOW_MS)
            log.update_config(config)
            assert log.log_start_offset >= start
            assert log.size_bytes >= kept_bytes
            start = log.log_start_offset
        elif name == "delete_records":
            start = log.delete_records(max(start, int(end * given_[0])))
        elif name == "reopen":
            clean, keep_point = given_
            point = log.flushed_offset if keep_point else 0
            log.close(clean=clean)
            log = open_log(
                folder / "t-0", clock, config=config, clean=clean, recovery_point=point, log_start_offset=start
            )
        elif name == "tear":
            log.close(clean=False)
            with max((folder / "t-0").glob("*.log")).open("ab") as file:
                file.write(b"\5" * given_[0])
            log = open_log(folder / "t-0", clock, config=config, log_start_offset=start)
        elif name == "fail":
            log._inject_fault(write_errno=28)
            assert log.append(batch(b"x")).error == 56
            log._inject_fault()
        assert log.damage is None
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (start, end, end)
        live = [row for row in model if row[1] > start]
        got = read_all(log)
        assert all(map(crc_ok, got))
        assert [base_of(b) for b in got] == [row[0] for row in live]
        for row in live:
            for offset in range(max(row[0], start), row[1]):
                assert base_of(log.read(offset, 1).records) == row[0]


def live_bytes(log: PartitionLog) -> int:
    """Return the bytes of the segments that are not entirely below the log start offset."""
    segments = log.segments()
    ends = [*(segment.base_offset for segment in segments[1:]), log.log_end_offset + 1]
    return sum(s.size_bytes for s, end in zip(segments, ends, strict=True) if end > log.log_start_offset)
