"""Object store that fails: rejected and aborted requests, or requests executed without a response. Rows are exact."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kbroker.cli import cli
from kbroker.common.request_log import VERSION
from kbroker.spark.tables.compaction import compact
from kbroker.spark.tables.delta_table import REQUEST_LOG, Table, TableInfo
from kbroker.spark.tables.log_schema import spark_schema
from kbroker.spark.tables.table_place import TablePlace
from tests.spark.committing import BUCKETS, placed, two_hours, write
from tests.support.object_store import FaultyStore, ObjectStore, as_words

#: After some seconds without the store a command ends with an error; other faults are retried.
IMPATIENT = {"max_retries": "6", "retry_timeout": "6s", "backoff_config.max_backoff": "1s"}
PATIENT = {**IMPATIENT, "max_retries": "30", "retry_timeout": "120s"}


@pytest.fixture(scope="module")
def store() -> Iterator[FaultyStore]:
    behind = ObjectStore()
    found = FaultyStore(behind)
    yield found
    found.close()
    behind.close()


@pytest.fixture
def table(store: FaultyStore, tmp_path: Path) -> Iterator[Table]:
    found = Table(TablePlace.of(f"s3://tables/{tmp_path.name}", {**store.options, **PATIENT}))
    found.open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
    yield found
    store.heal()


def sequences(table: Table) -> Counter[int | None]:
    """Count the occurrences of each row in the table."""
    from kbroker.spark.tables.file_reader import read_columns

    names = [one.path for one in Table(table.place).files()]
    return Counter(read_columns(table.place, names, ["correlation_id"])["correlation_id"].to_pylist())


def times(count: int) -> Counter[int | None]:
    return Counter({key: number * count for key, number in Counter(two_hours()["correlation_id"].to_pylist()).items()})


def test_requests_that_are_refused_are_repeated(store: FaultyStore, table: Table) -> None:
    """SlowDown, errors and resets of a quarter of all requests have no effect."""
    store.fail(kinds=["503", "500", "reset", "lost"], share=0.25)
    rows = placed(two_hours())
    assert [write(table, "a", number, rows) for number in (0, 1)] == [True, True]
    assert compact(table, 0, 1, everything=True).hours > 0
    assert set(store.heal()) == {"503", "500", "reset", "lost"}
    assert sequences(table) == times(2)


def test_a_commit_whose_answer_was_lost_is_known_as_its_own(store: FaultyStore, table: Table) -> None:
    """The store has written the version, and rejects the repeated request because it exists."""
    rows = placed(two_hours())
    store.fail(kinds=["lost"], method="PUT", path=r"_delta_log/\d+\.json", count=1)
    assert write(table, "a", 0, rows)
    assert store.heal() == {"lost": 1}
    assert table.committed("a") == 0
    store.fail(kinds=["lost"], method="PUT", path=r"_delta_log/\d+\.json", count=1)
    assert write(table, "a", 1, rows)
    assert sequences(table) == times(2)
    store.fail(kinds=["lost"], method="PUT", path=r"_delta_log/\d+\.json", count=1)
    before = len(table.files())
    assert (compact(table, 0, 1, everything=True).files_before, store.heal()) == (before, {"lost": 1})
    assert sequences(table) == times(2)


@pytest.mark.parametrize("kind", ["reset", "lost"])
def test_a_table_is_made_though_the_store_does_not_answer(store: FaultyStore, tmp_path: Path, kind: str) -> None:
    """The first version is written once, like every other: the store's client repeats no request for it."""
    wanted = TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue())
    made = Table(TablePlace.of(f"s3://tables/{tmp_path.name}", {**store.options, **PATIENT}))
    store.fail(kinds=[kind], method="PUT", path=r"_delta_log/\d+\.json", count=1)
    assert made.open(wanted).buckets == BUCKETS
    assert store.heal() == {kind: 1}
    store.fail(kinds=[kind], method="PUT", path=r"_delta_log/\d+\.json", count=1)
    assert made.open(replace(wanted, schema_version=VERSION + 1)).schema_version == VERSION + 1
    assert store.heal() == {kind: 1}
    assert write(made, "a", 0, placed(two_hours()))
    assert sequences(made) == times(1)


def run(table: Table, patience: dict[str, str], *words: str) -> Result:
    options = as_words({**table.place.storage_options, **patience})
    return CliRunner().invoke(cli, ["pipeline", words[0], table.place.uri, *words[1:], *options])


@pytest.mark.parametrize(
    "rule",
    [
        {"kinds": ["503"]},
        pytest.param({"kinds": ["500"], "method": "PUT", "path": r"_delta_log/\d+\.json"}, marks=pytest.mark.soak),
        {"kinds": ["reset"], "method": "PUT", "path": r"\.parquet"},
    ],
    ids=["all refused", "no commit", "no file"],
)
def test_a_store_that_stays_away_is_one_sentence(store: FaultyStore, table: Table, rule: dict[str, object]) -> None:
    """No change is partial, and the next run finds all rows."""
    rows = placed(two_hours())
    for number in (0, 1):
        write(table, "a", number, rows)
    store.fail(**rule)
    done = run(table, IMPATIENT, "compact")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    assert done.stderr.startswith("kbroker: ")
    assert store.heal()
    assert sequences(table) == times(2)
    again = run(table, PATIENT, "compact", "--json", "--quiet")
    assert (again.exit_code, json.loads(again.stdout)["compacted"]["hours"]) == (0, 2)
    assert sequences(table) == times(2)


def test_a_store_that_is_not_there_is_one_sentence(store: FaultyStore, table: Table) -> None:
    """Without the store's front end a command fails with one sentence, and the table is unchanged afterwards."""
    write(table, "a", 0, placed(two_hours()))
    store.kill()
    try:
        done = run(table, IMPATIENT, "compact")
    finally:
        store.start()
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    assert sequences(table) == times(1)
