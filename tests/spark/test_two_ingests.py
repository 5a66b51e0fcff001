"""Two ingests at once with their own drivers and JVMs: into one table, and by mistake with one checkpoint."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from kbroker.spark.tables.table_place import TablePlace
from tests.spark.day import make_day
from tests.spark.row_keys import keys_in, keys_of
from tests.spark.standalone import ROOT, environment
from tests.support.hdfs import Hdfs
from tests.support.object_store import ObjectStore, as_words

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
ROWS = 1_000
PATIENCE_S = 900


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TablePlace]]:
    folder = tmp_path_factory.mktemp("stores")
    with ExitStack() as stack:
        s3 = stack.enter_context(closing(ObjectStore()))
        hdfs = stack.enter_context(closing(Hdfs(folder / "hdfs")))
        yield {
            "disk": TablePlace.of(folder / "disk"),
            "S3": TablePlace.of("s3://tables/two", s3.options),
            "HDFS": TablePlace.of(f"{hdfs.uri}/two"),
        }


def ingest(table: TablePlace, log: Path, *more: str) -> subprocess.Popen[str]:
    words = ["ingest", table.uri, str(log), "--master", "local[1]", "--buckets", "2", "--json", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "kbroker", "pipeline", *words, *as_words(table.storage_options)],
        env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def logs(folder: Path, parts: int) -> tuple[list[Path], Counter[tuple[Any, ...]], int]:
    """Return a day's log in parts, its rows, and the bytes of a third of a part."""
    day = make_day(ROWS)
    lines = list(day.lines())
    found = []
    for number in range(parts):
        file = folder / f"requests-{number}.jsonl"
        file.write_text("".join(f"{line}\n" for line in lines[number::parts]))
        found.append(file)
    return found, keys_of(day.rows), file.stat().st_size // 3


@pytest.mark.parametrize("store", ["disk", "S3", "HDFS"])
def test_two_logs_into_one_table(stores: dict[str, TablePlace], store: str, tmp_path: Path) -> None:
    """Both ingests commit and compact at the same time, and each row is in the table once."""
    table = stores[store].within("both")
    files, wanted, third = logs(tmp_path, 2)
    running = [
        ingest(table, file, "--checkpoint", str(tmp_path / file.stem), "--max-per-batch", str(third)) for file in files
    ]
    done = [one.communicate(timeout=PATIENCE_S) for one in running]
    assert [one.returncode for one in running] == [0, 0], done
    reports = [json.loads(out) for out, _ in done]
    assert [one["run"]["batches"] > 2 for one in reports] == [True, True]
    assert sum(one["run"]["rows"] for one in reports) == ROWS
    assert keys_in(table) == wanted


@pytest.mark.parametrize("store", ["disk", "HDFS"])
def test_one_checkpoint_twice(stores: dict[str, TablePlace], store: str, tmp_path: Path) -> None:
    """A failure of an ingest is one sentence, and the next run adds the missing rows."""
    for attempt in range(3):
        table = stores[store].within(f"once-{attempt}")
        folder = tmp_path / str(attempt)
        folder.mkdir()
        (log,), wanted, third = logs(folder, 1)
        more = ("--max-per-batch", str(third // 2))
        running = [ingest(table, log, *more) for _ in range(2)]
        done = [one.communicate(timeout=PATIENCE_S) for one in running]
        print([one.returncode for one in running], done)
        for one, (_, said) in zip(running, done, strict=True):
            assert one.returncode == 0 or is_one_sentence(said.splitlines()), said
        assert keys_in(table) <= wanted
        last = ingest(table, log, *more)
        out, said = last.communicate(timeout=PATIENCE_S)
        assert last.returncode == 0, said
        assert keys_in(table) == wanted, out


def is_one_sentence(lines: Sequence[str]) -> bool:
    return len([line for line in lines if line.startswith("kbroker: ")]) == 1 and "Traceback" not in lines
