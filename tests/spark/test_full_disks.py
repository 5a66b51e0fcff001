"""Full disks of the table, the driver's checkpoint or the shuffles: one sentence, and exact rows afterwards."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.spark.committing import two_hours
from tests.spark.day import make_day
from tests.spark.standalone import ROOT, environment
from tests.spark.watching import closing_line, put
from tests.support import need

ROWS = 2_000


def in_a_small_disk(folder: Path, steps: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[int, str, str]]:
    """Run commands with another disk at `folder`.

    Args: `steps`: the disk's size in mount's form, or "full" for a disk without a free byte, and the command for it.
    Returns: status, output and errors of each command.
    """
    if shutil.which("unshare") is None:
        need.lack("needs unshare; on Debian: apt-get install util-linux")
    before = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        need.lack("this machine allows no mount namespaces")
    folder.mkdir(parents=True, exist_ok=True)
    output = folder.with_name("output")
    output.mkdir(exist_ok=True)
    place = shlex.quote(str(folder))
    script = [f"mount -t tmpfs -o size=1m none {place}"]
    for number, (size, command) in enumerate(steps):
        if size == "full":
            script.append(f"head -c 100m /dev/zero > {place}/.filling 2>/dev/null")
        else:
            script += [f"rm -f {place}/.filling", f"mount -o remount,size={size} {place}"]
        name = shlex.quote(str(output / str(number)))
        script.append(f"{shlex.join(command)} > {name}.out 2> {name}.err; echo $? > {name}.status")
    subprocess.run([*before, "sh", "-c", "\n".join(script)], env=environment(), cwd=ROOT, check=True)
    texts = [
        [(output / f"{number}.{kind}").read_text() for kind in ("status", "out", "err")] for number in range(len(steps))
    ]
    return [(int(status), out, said) for status, out, said in texts]


def program(*words: object) -> list[str]:
    return [sys.executable, "-m", "tests.spark.committing", *map(str, words)]


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "kbroker", "pipeline", *map(str, words)]


def test_a_table_on_a_full_disk(tmp_path: Path) -> None:
    """A batch or a compaction without space is not committed, and succeeds when there is space again."""
    table = tmp_path / "disk" / "table"
    steps = [
        ("32m", program(table, "write", "a", 2)),
        ("full", program(table, "write", "a", 3)),
        ("full", command("compact", table)),
        ("64m", program(table, "write", "a", 3)),
        ("64m", command("compact", table, "--json")),
    ]
    first, no_batch, no_compaction, second, compacted = in_a_small_disk(tmp_path / "disk", steps)
    assert first[:2] == (0, "committed\n" * 2), first
    assert no_batch[0] == 1
    assert "No space left on device" in no_batch[2]
    assert (no_compaction[0], no_compaction[2].count("\n")) == (1, 1), no_compaction
    assert "No space left on device" in no_compaction[2]
    assert second[:2] == (0, "left out\n" * 2 + "committed\n"), second
    assert json.loads(compacted[1])["table"]["rows"] == 3 * two_hours().num_rows, compacted


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", ["table", "checkpoint", "shuffles"])
def test_an_ingest_on_a_full_disk(what: str, tmp_path: Path) -> None:
    """An ingest on a full disk fails with one sentence and no partial batch, and the next run has all rows."""
    disk = tmp_path / "disk"
    log = tmp_path / "requests-1.jsonl"
    log.write_text("".join(f"{line}\n" for line in make_day(ROWS).lines()))
    table = (disk if what == "table" else tmp_path) / "table"
    checkpoint = (disk if what == "checkpoint" else tmp_path) / "checkpoint"
    local = (disk if what == "shuffles" else tmp_path) / "local"
    words = ["ingest", table, log, "--checkpoint", checkpoint, "--master", "local[2]", "--json", "--buckets", "2"]
    ingest = command(*words, "--conf", f"spark.local.dir={local}")
    sizes = {"table": ("300k", "256m"), "checkpoint": ("full", "64m"), "shuffles": ("200k", "256m")}[what]
    full, again = in_a_small_disk(disk, [(size, ingest) for size in sizes])
    said = [line for line in full[2].splitlines() if line.startswith("kbroker: ")]
    assert (full[0], len(said)) == (1, 1), full
    assert "o space left on device" in said[0] or "not enough space" in said[0], said
    assert "Traceback" not in full[2]
    report = json.loads(again[1])
    assert (again[0], report["run"]["rows"], report["table"]["rows"]) == (0, ROWS, ROWS), again


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("what", "size"), [("table", "64k"), ("checkpoint", "full"), ("checkpoint", "64k")])
def test_a_watch_on_a_full_disk(what: str, size: str, tmp_path: Path) -> None:
    """A watch on a full disk fails with one sentence, and the next run writes each minute once."""
    disk, logs = tmp_path / "disk", tmp_path / "logs"
    lines = list(make_day(ROWS).lines())
    put(logs, 1, [*lines, closing_line()])
    table = (disk if what == "table" else tmp_path) / "table"
    checkpoint = (disk if what == "checkpoint" else tmp_path) / "checkpoint"
    words = ["watch", table, logs, "--checkpoint", checkpoint, "--master", "local[2]", "--json", "--every", "1s"]
    watch = command(*words, "--watermark", "6h")
    full, again = in_a_small_disk(disk, [(size, watch), ("256m", following("2026-01-04 18:00:00", watch))])
    said = [line for line in full[2].splitlines() if line.startswith("kbroker: ")]
    assert (full[0], len(said)) == (1, 1), full
    assert "o space left on device" in said[0] or "not enough space" in said[0], said
    assert "Traceback" not in full[2]
    assert again[0] == 0, again
    views = json.loads(again[1])
    assert views["run"]["late"] == 0
    wanted = sum(row["repeated"] or 1 for row in make_day(ROWS).rows.to_pylist() if row["api_key"] is not None)
    assert views["requests"] == wanted


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_page_on_a_full_disk(tmp_path: Path) -> None:
    """The views continue without the page, and one line reports it."""
    disk, logs = tmp_path / "disk", tmp_path / "logs"
    put(logs, 1, [*make_day(ROWS).lines(), closing_line()])
    words = ["watch", tmp_path / "table", logs, "--page", disk / "page.html", "--master", "local[2]", "--json"]
    watch = following("the page was not written", command(*words, "--every", "1s", "--watermark", "6h"))
    ((status, out, said),) = in_a_small_disk(disk, [("full", watch)])
    assert status == 0, said
    assert json.loads(out)["run"]["rows"] > 0
    assert json.loads(out)["run"]["pages"] == 0
    assert said.count("the page was not written: [Errno 28] No space left on device") == 1
    assert "Traceback" not in said


def following(text: str, watch: Sequence[str]) -> list[str]:
    """Return a program that runs a `watch`, presses Ctrl-C after the text, and prints its summary."""
    return [sys.executable, "-m", "tests.spark.followed", text, *watch]
