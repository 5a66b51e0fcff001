"""Jobs on a standalone cluster, one worker of which has an empty disk where the driver has a table."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kbroker.spark.tables.table_place import TablePlace
from tests.spark.class_archive import ARCHIVE
from tests.spark.day import make_day
from tests.spark.executor_pythons import other_pythons, packed, python_without
from tests.spark.matrix import ALONE, S3, Cell, run_commands
from tests.spark.standalone import ROOT, Standalone, environment
from tests.spark.watching import watch_two_runs
from tests.support import need
from tests.support.object_store import ObjectStore

ROWS = 400
UNPROBED = "import kbroker.spark.tables.table_stream as t; t.require_shared = lambda *_: None"
IMPATIENT = "import kbroker.cli.pipeline_session as s; s.EXECUTOR_SECONDS = 0.5"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two folders: `shared`, with a log, is the same on all machines; a worker has its own disk at `private`.

    The other worker has its own disk at `private/own`.
    """
    folder = tmp_path_factory.mktemp("places")
    shared, private = folder / "shared", folder / "private"
    shared.mkdir()
    (private / "own").mkdir(parents=True)
    lines = list(make_day(ROWS).lines())
    (shared / "requests-1.jsonl").write_text("\n".join([*lines[: ROWS // 2], "{bad", *lines[ROWS // 2 :]]) + "\n")
    return shared, private


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, places: tuple[Path, Path]) -> Iterator[Standalone]:
    with closing(Standalone(tmp_path_factory.mktemp("cluster"))) as running:
        running.add_worker(hidden=places[1] / "own")
        running.add_worker(hidden=places[1])
        yield running


@pytest.mark.soak
def test_a_python_without_kbroker_is_named_before_the_job(
    cluster: Standalone, places: tuple[Path, Path], tmp_path: Path
) -> None:
    """A task reports a Python without kbroker and pyarrow, which is not on the driver's machine."""
    bare = python_without(tmp_path / "bare")
    done = cluster.run("ingest", places[0] / "bare", places[0] / "requests-1.jsonl", "--quiet", python=bare)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kbroker: the Python of Spark's executor on ")
    assert "has no kbroker (ModuleNotFoundError: " in line
    assert "send one with --py-env ARCHIVE" in line
    assert not (places[0] / "bare").exists()


@pytest.mark.soak
def test_a_python_of_another_version_is_named(cluster: Standalone, places: tuple[Path, Path], tmp_path: Path) -> None:
    """Spark's worker detects the version, and the message has the remedy."""
    others = other_pythons()
    if not others:
        need.lack("needs a second version of Python")
    python = python_without(tmp_path, others[0])
    done = cluster.run("usage", places[0] / "requests-1.jsonl", "--quiet", python=python)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("kbroker: Spark's executors run Python 3.")
    assert f" and this command 3.{sys.version_info[1]}: install " in line


@pytest.mark.soak
def test_a_python_is_sent_to_executors(cluster: Standalone, places: tuple[Path, Path], tmp_path: Path) -> None:
    """Tasks use the Python of the archive, and the driver, which lacks that path, its own."""
    table = places[0] / "sent"
    done = cluster.run(
        "ingest", table, places[0] / "requests-1.jsonl", "--buckets", "2", "--py-env", packed(tmp_path), "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["table"]["rows"] == ROWS


@pytest.mark.skipif(not ARCHIVE.exists(), reason="needs build/spark-classes-*.jsa, which `make spark-classes` writes")
def test_the_jvms_use_the_archive_of_classes(cluster: Standalone) -> None:
    """A JVM that cannot use the archive reports nothing and takes 2 s more of CPU to start."""
    unused = [one.args for one in cluster.processes if str(ARCHIVE) not in Path(f"/proc/{one.pid}/maps").read_text()]
    assert unused == [], f"written by another Java or Spark? Then delete {ARCHIVE}"


def without_options(words: list[str]) -> list[str]:
    """Return a command without the options of its store."""
    pairs = zip(words, ["", *words], strict=False)
    return [word for word, before in pairs if "--storage-option" not in (word, before)]


def test_what_executors_reach_is_filled_and_read(cluster: Standalone, places: tuple[Path, Path]) -> None:
    """A shared folder and a store are filled and read, where driver and executors share nothing else.

    Workers in other processes write, the driver commits, and no line of Spark's own is shown. Credentials of options
    and of the command's environment reach executors; those of a profile do not, and one sentence names the missing
    ones. A folder that is not shared is detected by a task: one sentence reports it, and nothing is written. All
    commands use one session, since each would take three JVMs.
    """
    shared, private = places
    lines = make_day(1_000).lines_before(2)
    log = shared / "requests-2.jsonl"
    log.write_text("\n".join([*lines[:30], "{bad", *lines[30:]]) + "\n")
    with closing(ObjectStore()) as s3:
        place = TablePlace.of("s3://tables/alone", s3.options)
        store = Cell(ALONE, S3, place, private / "own", cluster.options, "", "", len(lines))
        store.prepare(lines)
        words = store.words()
        variables = ["=".join(pair) for pair in s3.options.items()]
        in_store = {
            "ingest": [*variables, *without_options(words["ingest"])],
            **{name: words[name] for name in ("replay", "compact")},
        }
        profile = private / "own" / "credentials"
        profile.write_text("[work]\naws_access_key_id=key\naws_secret_access_key=secret\n")
        of_profile = [
            *(one for one in variables if "KEY" not in one),
            *("AWS_PROFILE=work", f"AWS_SHARED_CREDENTIALS_FILE={profile}"),
            *without_options(words["usage"]),
            *("--storage-option", "AWS_FORCE_CREDENTIAL_LOAD=true"),  # otherwise not loaded if a store has an address
        ]
        refused = ["ingest", str(private / "table"), str(log), "--quiet", *cluster.options]
        filled = ["ingest", str(shared / "table"), str(log), "--buckets", "2", "--json", *cluster.options]
        found, of_spark = run_commands({"filled": filled, "refused": refused, "profile": of_profile, **in_store})
    assert of_spark == ""

    no_credentials = found.pop("profile")
    assert (no_credentials["status"], no_credentials["out"]) == (1, "")
    assert f"cannot read {place}/ready/date=" in no_credentials["err"]
    assert "Spark's executors have no credentials for the object store (" in no_credentials["err"]
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in no_credentials["err"]

    no_folder = found.pop("refused")
    assert (no_folder["status"], no_folder["out"]) == (1, "")
    (line,) = no_folder["err"].splitlines()
    assert line.startswith("kbroker: an executor of Spark on ")
    assert f"has another {private / 'table'} than this machine" in line
    assert not (private / "table" / "_checkpoint").exists()
    assert not list((private / "table").glob("_probe-*"))

    in_folder = found.pop("filled")
    assert in_folder["status"] == 0, in_folder["err"]
    report = json.loads(in_folder["out"])
    assert (report["run"]["rows"], report["run"]["rejected"], report["table"]["rows"]) == (len(lines), 1, len(lines))
    expected = ("starting Spark", "ingesting, stage ", "batch 0: ", "compacted ")
    assert [line for line in in_folder["err"].splitlines() if not line.startswith(expected)] == []

    store.judge(found)


@pytest.mark.soak
def test_rows_that_do_not_arrive_are_not_committed(cluster: Standalone, places: tuple[Path, Path]) -> None:
    """Without the check, files that an executor wrote to its own disk are missed, and the stream stops."""
    table = places[1] / "unprobed"
    done = cluster.run("ingest", table, places[0] / "requests-1.jsonl", "--buckets", "4", code=UNPROBED)
    assert done.returncode == 1
    assert "was written by an executor, but is missing or has another size" in done.stderr
    assert "nothing was committed" in done.stderr
    assert not list((table / "_checkpoint" / "commits").glob("[0-9]*"))


@pytest.mark.soak
def test_another_file_of_the_same_name_is_not_read(cluster: Standalone, places: tuple[Path, Path]) -> None:
    """A log of the driver that an executor lacks, or has with other content, is reported before anything is read."""
    log = places[1] / "requests-1.jsonl"
    log.write_bytes((places[0] / "requests-1.jsonl").read_bytes())
    done = cluster.run("ingest", places[0] / "other", log)
    assert done.returncode == 1
    assert f"has another {log} than this machine" in done.stderr


def test_a_cluster_that_starts_no_executor_is_reported(cluster: Standalone, places: tuple[Path, Path]) -> None:
    """Spark waits forever and prints nothing, so a line reports it after a while."""
    too_large = ("--conf", "spark.executor.memory=900g")
    call = cluster.call("usage", places[0] / "requests-1.jsonl", *too_large, code=IMPATIENT)
    with subprocess.Popen(call, env=environment(), stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stderr is not None
        try:
            said = [next(running.stderr) for _ in range(2)]
        finally:
            running.kill()
    assert said[0] == "starting Spark\n"
    assert said[1].startswith(f"{cluster.url} started no executor within 0.5 s: ")


@pytest.mark.soak
def test_watch(cluster: Standalone, places: tuple[Path, Path]) -> None:
    """Executors keep the state in the shared checkpoint, and a folder that is not shared is rejected."""
    folder = places[0] / "watched"
    folder.mkdir()
    watch_two_runs(cluster.call("watch"), TablePlace.of(folder))
    done = cluster.run("watch", places[1] / "views", folder / "logs", "--quiet")
    assert done.returncode == 1
    assert f"has another {places[1] / 'views'} than this machine" in done.stderr
