"""Progress of a query of `watch`, and failures of a query that do not end the stream."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import Row

from kbroker._core.clock import VirtualClock
from kbroker.spark.datasource.options import KEEP_ON
from kbroker.spark.errors import LOST_PART, NO_WORKER, PipelineError
from kbroker.spark.tables import table_stream
from kbroker.spark.tables.delta_table import Stream, TableInfo
from kbroker.spark.tables.table_stream import StreamOptions, TableStream
from kbroker.spark.watch.watch import counts_of


def test_counts_of_both_kinds_of_session() -> None:
    """The counts are a row of two columns here, and over Spark Connect 4.2 a row of values and schema."""
    fields: list[dict[str, object]] = [
        {"name": name, "type": "long", "nullable": False, "metadata": {}} for name in ("records", "rejected")
    ]
    remote = json.loads(json.dumps({"values": [21, 2], "schema": {"type": "struct", "fields": fields}}))
    assert list(counts_of(Row(**remote))) == [21, 2]
    assert list(counts_of(Row(records=21, rejected=2))) == [21, 2]


class EndedQuery:
    """Query that Spark has ended."""

    def __init__(self, said: str) -> None:
        self._said = said

    def awaitTermination(self, seconds: float) -> bool:
        raise StreamingQueryException(self._said)


class FakeBatches(TableStream):
    """Stream that writes nothing."""

    def write(self, batch: Any, number: int, parse: Any) -> None:
        pass


def ended_stream(folder: Path, progress: Callable[[str], object]) -> FakeBatches:
    """Return a stream without a session, whose queries have ended."""
    spark: Any = None
    reads = Stream("t", "h:1", ())
    return FakeBatches(spark, folder / "t", StreamOptions(), TableInfo(), reads, VirtualClock(), progress, None)


@pytest.mark.parametrize("said", [NO_WORKER, f"{LOST_PART}7_0 not found! Either the executor"])
def test_a_stream_goes_on_after_what_passes(said: str, tmp_path: Path) -> None:
    """The number of consecutive retries is limited, and a batch resets it, since a stream may run for months."""
    shown: list[str] = []
    stream = ended_stream(tmp_path, shown.append)
    batch: Any = None
    query: Any = EndedQuery(f"[STREAM_FAILED] Query terminated with exception: {said} SQLSTATE: XXKST")
    for _ in range(2):
        for _ in range(table_stream.STARTS):
            assert stream._await(query, lambda: False)
        stream._take_turn(batch, 1, lambda batch: batch)
    for _ in range(table_stream.STARTS):
        assert stream._await(query, lambda: False)
    with pytest.raises(PipelineError, match="the stream ended: "):
        stream._await(query, lambda: False)
    assert len(shown) == 3 * table_stream.STARTS
    assert all(line.endswith("; trying again") for line in shown)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("no space left", "the stream ended: no space left"),
        (
            f"topic 't' is another; {KEEP_ON}, or give the query a new checkpointLocation",
            "; give --option failOnDataLoss=false to continue with the remaining records, or begin a new table$",
        ),
    ],
)
def test_a_stream_ends_with_its_query(said: str, wanted: str, tmp_path: Path) -> None:
    """A failure of the query ends the stream with its reason; after a loss of records the reason names --option."""
    query: Any = EndedQuery(f"[STREAM_FAILED] Query terminated with exception: {said} SQLSTATE: XXKST")
    with pytest.raises(PipelineError, match=wanted):
        ended_stream(tmp_path, print)._await(query, lambda: False)


class LateQuery:
    """Query that ends at once, or for lack of a Python worker."""

    def __init__(self, ends: list[Exception | None]) -> None:
        self._ends = ends

    def awaitTermination(self, seconds: float) -> bool:
        ended = self._ends.pop(0)
        if ended is not None:
            raise ended
        return True

    def stop(self) -> None:
        pass


def test_a_stream_is_started_again_for_want_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark Connect plans a stream at its start, where it may lack a Python worker."""
    monkeypatch.setattr(table_stream, "require_checkpoint", lambda *of: None)
    monkeypatch.setattr(table_stream, "require_shared", lambda *of: None)
    stream = ended_stream(tmp_path, lambda line: None)
    late = PySparkException("Timed out while waiting for the Python worker to connect back")
    begun: list[Exception | None] = [late, None, late, late, None]
    ended: list[Exception | None] = [StreamingQueryException(f"terminated with exception: {NO_WORKER}"), None]

    def start(*of: object) -> Any:
        failure = begun.pop(0)
        if failure is not None:
            raise failure
        return LateQuery(ended)

    for name in ("_open", "_compact", "_vacuum"):
        monkeypatch.setattr(stream, name, lambda *of, **more: None)
    monkeypatch.setattr(stream, "_start", start)
    frame: Any = None
    stream.run(lambda: frame, lambda batch: batch, lambda: False)
    assert (begun, ended) == ([], [])
