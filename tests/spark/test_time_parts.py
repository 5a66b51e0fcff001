"""A log replayed hour by hour has the results of a whole replay, with at most an hour in memory."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bench.pipeline.population import Population, Shape
from bench.pipeline.rows import block_rows
from kbroker.common.quotas import QuotaEntity
from kbroker.spark.whatif import read, recommend
from kbroker.spark.whatif.feed import Replay, Windows
from kbroker.spark.whatif.quota_set import QuotaSet
from kbroker.spark.whatif.read import settled
from kbroker.spark.whatif.recommend import _needs
from kbroker.spark.whatif.sum import COUNTS, ClientSums, second_rows

LIMITS = {"producer_byte_rate": 3_000.0, "consumer_byte_rate": 9_000.0, "request_percentage": 0.05}
SETS = [
    QuotaSet({QuotaEntity.of({"user": None, "client-id": None}): LIMITS}),
    QuotaSet({QuotaEntity.of({"user": None}): LIMITS}),
]


@pytest.fixture(scope="module")
def hours() -> list[pa.Table]:
    """Return hours with responses that take long to send, so that hours overlap in the order of judgement."""
    people = Population(Shape(20_000, 25, days=0.25))
    tables = [block_rows(people, block)[0] for block in range(people.shape.blocks)]
    found = []
    for table in tables:
        late = pc.if_else(pc.less(pc.bit_wise_and(table["sequence"], 63), 3), 400_000_000, table["send_time_us"])
        at = table.column_names.index("send_time_us")
        found.append(table.set_column(at, table.schema.field(at), late).drop_columns(["updates"]))
    return found


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PART_ROWS", 1)


def test_no_value_of_a_part_is_older_than_one_before(hours: list[pa.Table]) -> None:
    """Each row is in one part, and there are as many parts as hours."""
    parts, borders = zip(*settled(iter(hours)), strict=True)
    assert sorted(pc.unique(pa.concat_tables(parts)["sequence"]).to_pylist()) == list(range(1, 20_001))
    assert sum(part.num_rows for part in parts) == 20_000
    assert len(parts) == len(hours)
    for before, border_ms, after in zip(parts, borders, parts[1:], strict=False):
        assert read._judged_ms(before).max() < border_ms == read._judged_ms(after).min()
    assert borders[-1] is None


@pytest.mark.parametrize("quotas", SETS)
@pytest.mark.parametrize("bin_s", [None, 1_000])
def test_sums_of_parts_are_those_of_the_whole(hours: list[pa.Table], quotas: QuotaSet, bin_s: int | None) -> None:
    """The counts of every client and second are equal, with counters kept over the hours."""
    whole, by_hours = ClientSums(bin_s), ClientSums(bin_s)
    whole.add(Replay(quotas).feed(pa.concat_tables(hours)))
    replay = Replay(quotas)
    for part, until_ms in settled(iter(hours)):
        by_hours.add(replay.feed(part, until_ms))
    expected, found = (
        pa.concat_tables(list(sums.end())).sort_by([(n, "ascending") for n in ("principal", "client_id", "bin")])
        for sums in (whole, by_hours)
    )
    assert found.equals(expected)
    assert pc.sum(found["requests"]).as_py() >= 20_000 - 200
    assert pc.sum(found["delayed"]).as_py() > 100
    assert (found.num_rows > 100) is (bin_s is not None)


def test_sums_are_those_of_the_seconds(hours: list[pa.Table]) -> None:
    """The sums equal those computed from the rows of each second."""
    outcome = Replay(SETS[0]).feed(pa.concat_tables(hours))
    sums = ClientSums()
    sums.add(outcome)
    seconds: dict[tuple[str, str], dict[int, int]] = {}
    counts: dict[tuple[str, str], list[int]] = {}
    for row in second_rows(outcome).to_pylist():
        who = (row["principal"], row["client_id"])
        of_client = seconds.setdefault(who, {})
        of_client[row["second"]] = of_client.get(row["second"], 0) + row["delayed"]
        counts[who] = [a + row[name] for a, name in zip(counts.get(who, [0] * len(COUNTS)), COUNTS, strict=True)]
    for row in next(sums.end()).to_pylist():
        who = (row["principal"], row["client_id"])
        delayed = [second for second, number in seconds[who].items() if number]
        assert [row[name] for name in COUNTS] == counts[who]
        assert (row["active_seconds"], row["delayed_seconds"]) == (len(seconds[who]), len(delayed))
        assert (row["first_second"], row["last_second"]) == ((min(delayed), max(delayed)) if delayed else (None, None))


def test_needs_of_parts_are_those_of_the_whole(hours: list[pa.Table], monkeypatch: pytest.MonkeyPatch) -> None:
    """The needs are equal, even for an entity with so many values that they are not joined."""
    expected = _needs([(pa.concat_tables(hours), None)], 0.05, "user,client-id", Windows())
    assert len(expected) > 20
    for joined in (1 << 20, 64):
        monkeypatch.setattr(recommend, "JOINED_VALUES", joined)
        found = _needs(settled(iter(hours)), 0.05, "user,client-id", Windows())
        assert sorted(found) == sorted(expected)
