"""Arrow and JSON contain the same records, row for row."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_def import ConfigError
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.request_log_names import ARROW_END, ARROW_SUFFIX, JSON_SUFFIX
from kbroker.common.rolling_files import RollingFiles
from kbroker.network.connections.refusal import Refusal
from kbroker.protocol.records import iter_batches
from kbroker.request_log._drain import RecordDrain
from kbroker.request_log._json_lines import JsonLines
from kbroker.request_log.arrow_form import ArrowForm
from kbroker.request_log.service import RequestLog
from kbroker.request_log.settings import request_log_settings
from kbroker.request_log.writer import RequestLogWriter
from tests.support.errors import raising
from tests.support.log_files import memory_log
from tests.support.request_log import NAMES, Bench, as_columns, as_row

pa = pytest.importorskip("pyarrow")


def fill(bench: Bench) -> None:
    """Write records of all kinds: plain, with notes of every type, hostile, idle, late, and refusals."""
    at = bench.now_ns()
    one, other = bench.connect(b"User:\xff\xfe"), bench.connect(b"User:bob", remote_host=b"::1", index=3)
    one.record(transactional_id="geschäft".encode())
    one.record(api_key=18, software=(b"librdkafka", b"2.10.0"), client_id=None)
    one.record(
        client_id=b"\xe2\x82gr\xc3\xbc\xc3\x9fe", start_ns=at, dequeue_ns=at + 1500, local_done_ns=at + 2500,
        response_ready_ns=at + 9000, response_dequeue_ns=at + 9000, response_sent_ns=at + 12_345_678,
        network_ns=77_777, request_bytes=123, response_bytes=45, throttle_ms=7, errors=[(0, 2), (89, 3)],
        updates=[(0, b"u", b"c", 1, 5, 1 / 3, True), (2, b"", b"\x80", 2, 6, -4.0, False)],
        verdicts=[
            (kind, b"u%d" % kind, b"c", kind + 1, 9, 10.5, 10.0, 11_000, 500, 7, kind == 3) for kind in range(4)
        ],
    )  # fmt: skip
    other.record(count=3, verdicts=[(1, b"", b"", 0, 1, float("nan"), float("inf"), 1, 1, 1, False)])
    other.record(shadows=[(kind, b"u", b"\xff", 8, 9, 2.5, 1.0, 11_000, 500, 7, kind == 3) for kind in range(4)])
    other.record(
        verdicts=[(0, b"", b"c", 7, 9, 2.0, 1.0, 11_000, 50, 50, False)],
        shadows=[(0, b"", b"c", 7, 9, 2.0, 1.0, 11_000, 50, 50, False)],
    )
    other.record(count=4, api_key=1, brought_nothing=True, response_sent_ns=at)
    other.record(is_late=True, appended=[(b"t\xff", 2, 1 << 40, (1 << 40) + 1), (b"u", 0, 0, 0)])
    bench.core.note_refusal(Refusal("unknown-api", 999, 7, 1, 0, 14, "a:1-b:2-0-3", "PLAINTEXT", "b"))
    bench.core.note_refusal(Refusal("invalid-receive", -1, -1, -1, 0, -1, "", ""), 290)


def tables(data: bytes) -> Any:
    return pa.ipc.open_stream(data).read_all()


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_arrow_equals_json_row_for_row(compression: str) -> None:
    """Every column of every record is equal; columns that JSON omits are null."""
    rows = []
    for arrow in (False, True):
        bench = Bench()
        fill(bench)
        drain = RecordDrain(bench.core)
        if arrow:
            form = ArrowForm(7, NAMES, partitions=0, compression=compression, wants_lines=True)
            assert drain.drain(form.columns, 1 << 20, True)
            assert form.line_count == 12
            table = tables(form.begin + form.take_lines() + ARROW_END)
            table.validate(full=True)
            rows.append([as_row(row) for row in table.to_pylist()])
            assert table.schema.metadata == {b"version": b"5"}
            assert form.line_count == 0
        else:
            lines = JsonLines(7, NAMES)
            drain.drain(lines, 1 << 20, True)
            rows.append([as_columns(json.loads(line)) for line in lines.take_lines().splitlines()])
    assert len(rows[0]) == 12
    for in_json, in_arrow in zip(*rows, strict=True):
        assert in_json == in_arrow


def test_batches_are_whole_streams_in_the_topic_and_in_files(tmp_path: Path) -> None:
    """The topic has one record with a format header per batch and partition; a file is one stream of the batches."""
    bench = Bench(buffer_bytes=1 << 22)
    logs = [memory_log("log", n, bench.clock) for n in range(3)]
    form = ArrowForm(7, NAMES, partitions=3, compression="none", wants_lines=True)
    files = RollingFiles(
        str(tmp_path), ".arrows", bench.clock, file_bytes=1 << 30, file_count=3, begin=form.begin, end=ARROW_END
    )
    writer = RequestLogWriter(bench.core, form.columns, form, bench.clock, files, lambda: logs)
    for number in range(3000):
        bench.connect(b"User:u%d" % (number % 5)).record(correlation_id=number)
        if number % 1000 == 999:
            writer.flush()
    writer.close()
    found = []
    for log in logs:
        data = log.read(0, 1 << 26).records
        for batch in iter_batches(data) if data else ():
            for record in batch.records():
                assert list(record[4]) == [("format", b"arrow")]
                found += tables(record[3])["correlation_id"].to_pylist()  # type: ignore[arg-type]
    assert sorted(found) == list(range(3000))
    (file,) = tmp_path.iterdir()
    assert sorted(tables(file.read_bytes())["correlation_id"].to_pylist()) == list(range(3000))
    assert (writer.written, writer.dropped) == (3000, 0)


def test_files_are_written_while_the_topic_cannot_be_created(tmp_path: Path) -> None:
    """The records are in the files, are counted as missing in the topic, and do not wait in memory."""
    bench = Bench()
    log = memory_log("log", 0, bench.clock)
    form = ArrowForm(7, NAMES, partitions=1, compression="none", wants_lines=True)
    files = RollingFiles(
        str(tmp_path), ".arrows", bench.clock, file_bytes=1 << 30, file_count=3, begin=form.begin, end=ARROW_END
    )
    fail = raising(KafkaError(Errors.KAFKA_STORAGE_ERROR, "the disk is full"))
    logs: list[Callable[[], Any]] = [fail, fail, lambda: [log], lambda: [log]]
    writer = RequestLogWriter(bench.core, form.columns, form, bench.clock, files, lambda: logs.pop(0)())
    for number in range(3):
        bench.connect().record(correlation_id=number)
        writer.flush()
    writer.close()
    (file,) = tmp_path.iterdir()
    assert tables(file.read_bytes())["correlation_id"].to_pylist() == [0, 1, 2]
    assert (writer.dropped, log.log_end_offset) == (2, 1)


def test_a_missing_arrow_stops_the_start_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package extra."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = BrokerConfig({"kbroker.request.log.format": "arrow", "kbroker.request.log.topic": "log"})
    with pytest.raises(ConfigError, match=r"pip install 'kbroker\[arrow\]'"):
        request_log_settings(config)
    assert request_log_settings(BrokerConfig({"kbroker.request.log.format": "arrow"})).is_on is False


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_a_topic_that_others_write_is_refused(topic: str) -> None:
    """A topic of another part of the broker is refused, because records of requests would damage its content."""
    with pytest.raises(ConfigError, match="another part"):
        request_log_settings(BrokerConfig({"kbroker.request.log.topic": topic}))


def test_a_buffer_beyond_reason_is_refused() -> None:
    """The size of the buffer has a maximum, because it is rounded up to a power of two."""
    with pytest.raises(ConfigError, match=r"kbroker\.request\.log\.buffer\.bytes"):
        BrokerConfig({"kbroker.request.log.buffer.bytes": 2**62})


@pytest.mark.parametrize(("form", "suffix", "end"), [("json", JSON_SUFFIX, b""), ("arrow", ARROW_SUFFIX, ARROW_END)])
def test_files_have_the_suffix_and_the_end_of_their_form(tmp_path: Path, form: str, suffix: str, end: bytes) -> None:
    config = {"kbroker.request.log.dir": str(tmp_path), "kbroker.request.log.format": form}
    files = RequestLog(BrokerConfig(config), VirtualClock(), {}, 1)._files(b"begin ")
    files.write(b"records")
    files.close()
    assert [(path.suffix, path.read_bytes()) for path in tmp_path.iterdir()] == [(suffix, b"begin records" + end)]
