"""Commands of the pipeline and their words for each place of `docs/pipeline-cluster.md`."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbroker.common.request_log import VERSION
from kbroker.spark.tables.delta_table import REQUEST_LOG, Table, TableInfo
from kbroker.spark.tables.log_schema import spark_schema
from kbroker.spark.tables.table_place import TablePlace
from tests.spark.committing import BUCKETS, placed, two_hours, write
from tests.spark.standalone import ROOT, environment

DISK, HDFS, S3 = "disk", "HDFS", "S3"
STORES = (DISK, HDFS, S3)
HERE, SHARED, CONNECT = "this machine", "a cluster with shared disks", "Spark Connect"
ALONE = "a cluster without shared disks"
PLACES = (HERE, SHARED, ALONE, CONNECT)
#: All commands except `jars`, which reads and writes no table.
COMMANDS = (
    "ingest", "usage", "throttles", "watch", "archive", "lag", "compact", "replay", "recommend", "report",
)  # fmt: skip
BY_DRIVER = {"lag", "compact"}  # run without Spark

QUOTAS = "- entity: {user: null, client-id: null}\n  quotas: {producer_byte_rate: 3000}\n"


def refusal(place: str, store: str, command: str) -> str | None:
    """Return the error with which a command is refused in a place, or None if it works there."""
    if place == ALONE and store == DISK and command not in BY_DRIVER:
        return "than this machine: tables and logs must be in a folder"
    if (place, store, command) == (ALONE, S3, "watch"):
        return "than this machine: the checkpoint of `watch`, in which executors keep its state, must"  # a folder here
    return None


#: Commands whose results `test_every_command` has verified; the page lists the others as not run. Add a command
#: once it is verified in another place.
RUN = {(place, store): COMMANDS for place in PLACES for store in STORES if (place, store) != (ALONE, DISK)}


def table() -> str:
    """Return the matrix in the form of the page."""
    lines = [f"| Spark runs on | {' | '.join(STORES)} |", "|---|" + "---|" * len(STORES)]
    return "\n".join(lines + [f"| {one} | {' | '.join(_cell(one, store) for store in STORES)} |" for one in PLACES])


def _cell(place: str, store: str) -> str:
    refused = {one for one in COMMANDS if refusal(place, store, one)}
    if refused == set(COMMANDS) - BY_DRIVER:
        return "refused: those that need Spark"
    run = RUN.get((place, store), ())
    if not run:
        return "not run"
    if any(refusal(place, store, one) is None for one in COMMANDS if one not in run):
        return ", ".join(f"`{one}`" for one in run)
    return "; refused: ".join(["all", *(f"`{one}`" for one in COMMANDS if one in refused)])


@dataclass(frozen=True)
class Cell:
    """Places of the data of a run of all commands, and Spark's settings for it.

    `base`: of tables and logs; `driver`: a folder for the driver alone; `spark`: words after a command that uses Spark.
    """

    place: str
    store: str
    base: TablePlace
    driver: Path
    spark: Sequence[str]
    bootstrap: str
    topic: str
    rows: int

    @property
    def storage(self) -> list[str]:
        return [word for pair in self.base.options for word in ("--storage-option", "=".join(pair))]

    def prepare(self, lines: Sequence[str]) -> None:
        """Write the log, a table for commands that only read, and the files on the driver's disk."""
        for number, part in enumerate((lines[: len(lines) // 2], lines[len(lines) // 2 :]), 1):
            self.base.write(f"logs/requests-{number}.jsonl", ("\n".join(part) + "\n").encode())
        found = Table(self.base.within("ready"))
        found.open(TableInfo(REQUEST_LOG, BUCKETS, VERSION, spark_schema().jsonValue()))
        for number in range(2):
            write(found, "a", number, placed(two_hours()))
        self.driver.mkdir(parents=True, exist_ok=True)
        (self.driver / "quotas.yaml").write_text(QUOTAS)

    def words(self) -> dict[str, list[str]]:
        """Return each command, in the order of their runs."""
        ready = self.base.file("ready")
        logs, new, views, kept = (self.base.file(name) for name in ("logs", "table", "views", "archive"))
        inside = self.store != S3
        checkpoint = [[] if inside else ["--checkpoint", str(self.driver / name)] for name in ("c", "a", "w")]
        of_archive = kept if inside else str(self.driver / "a")
        quotas = ["--quotas", str(self.driver / "quotas.yaml")]
        spark, store = list(self.spark), self.storage
        topic = ["--topic", self.topic, "--bootstrap-server", self.bootstrap]
        followed = ["--every", "1s", "--watermark", "1min"]
        return {
            "ingest": ["ingest", new, logs, "--buckets", "2", "--json", *checkpoint[0], *spark, *store],
            "usage": ["usage", ready, "--json", *spark, *store],
            "usage of logs": ["usage", self.base.file("logs/requests-*.jsonl"), "--json", *spark, *store],
            "throttles": ["throttles", ready, "--json", *spark, *store],
            "watch": ["watch", views, logs, *followed, "--json", *checkpoint[2], *spark, *store],
            "archive": ["archive", kept, *topic, "--json", *checkpoint[1], *spark, *store],
            "lag": ["lag", "--checkpoint", of_archive, "--json", "--bootstrap-server", self.bootstrap, *store],
            "replay": ["replay", ready, *quotas, "--json", *spark, *store],
            "recommend": ["recommend", ready, "--json", *spark, *store],
            "report": ["report", ready, *quotas, "-o", str(self.driver / "page.html"), "--json", *spark, *store],
            "compact": ["compact", ready, "--json", *store],
        }

    def judge(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Assert that each command has done its work or was refused with one sentence."""
        assert {name: done for name, done in found.items() if not self._is_right(name, done)} == {}

    def _is_right(self, name: str, done: Mapping[str, Any]) -> bool:
        command = name.partition(" ")[0]
        refused = refusal(self.place, self.store, command)
        if command == "lag" and refusal(self.place, self.store, "archive"):
            refused = "is not a checkpoint of a stream"  # of an archive that was refused
        if refused is None:
            return done["status"] == 0 and self._has_worked(name, json.loads(done["out"]))
        said = [line for line in done["err"].splitlines() if line.startswith("kbroker: ")]
        return (done["status"] in (1, 2), done["out"], len(said)) == (True, "", 1) and refused in said[0]

    def _has_worked(self, name: str, out: Any) -> bool:
        rows = 2 * two_hours().num_rows
        checks: dict[str, Callable[[], bool]] = {
            "ingest": lambda: (out["run"]["rows"], out["table"]["rows"]) == (self.rows, self.rows),
            "usage": lambda: sum(row["requests"] for row in out) > 0,
            "usage of logs": lambda: sum(row["requests"] for row in out) > 0,
            "throttles": lambda: bool(out["quotas"]),
            "watch": lambda: (out["run"]["records"], out["table"]["rows"] > 0) == (self.rows, True),
            "archive": lambda: out["table"]["rows"] == 100,
            "lag": lambda: {row["lag"] for row in out} == {0},
            "replay": lambda: out["totals"]["requests"] > 0,
            "recommend": lambda: bool(out["quotas"]),
            "report": lambda: out["size_bytes"] > 1000,
            "compact": lambda: (out["compacted"]["hours"], out["table"]["rows"]) == (2, rows),
        }
        return checks[name]()


def run_commands(several: Mapping[str, Sequence[str]]) -> tuple[dict[str, dict[str, Any]], str]:
    """Run commands in one session of a separate process.

    Returns: status, out and err of each, and the lines on stderr that are Spark's own.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.many_commands"],
        input=json.dumps(list(several.values())),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(several, json.loads(done.stdout), strict=True)), done.stderr
