"""`kbroker storage` beyond the lines that tests/integration/test_storage_tool.py compares with Kafka's tool."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from kbroker._core.clock import VirtualClock
from kbroker.cli import cli
from kbroker.log.folder_lock import FolderLock
from kbroker.metadata.records.control_records import Voters
from kbroker.metadata.records.snapshot_files import read_snapshot
from tests.support.cli import printed, refusal, run

NOW_MS = 1_700_000_000_000


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the properties of a kbroker with two folders, without a role, a listener or a quorum."""
    path = tmp_path / "server.properties"
    path.write_text(f"log.dirs={tmp_path}/a,{tmp_path}/b\nnode.id=5\n")
    return path


def document(*words: object) -> Any:
    return json.loads(printed(None, "storage", *map(str, words), "--json", obj=VirtualClock(NOW_MS)))


def test_a_file_of_kbroker_alone(config: Path) -> None:
    """Without Kafka's required properties the node is a combined node, with the usual address of a controller."""
    done = document("format", "-c", config, "-t", "abc", "--standalone", "-r", "4.0")
    first, second = done["folders"]
    ids = [one.pop("directory_id") for one in done["folders"]]
    assert ids[0] != ids[1]
    assert first == {"folder": f"{config.parent}/a", "cluster_id": "abc", "node_id": 5, "is_new": True}
    assert second["folder"] == f"{config.parent}/b"
    assert done["levels"]["metadata.version"] == 25
    (snapshot,) = config.parent.rglob("__cluster_metadata-0/*.checkpoint")
    batches = list(read_snapshot(snapshot))
    assert {batch.timestamp_ms for batch in batches} == {NOW_MS}
    quorum = batches[0].control[2]
    assert isinstance(quorum, Voters)
    (voter,) = quorum.voters
    assert voter.endpoints == (("CONTROLLER", "localhost", 9093),)
    assert document("info", "-c", config) == {
        "folders": [f"{config.parent}/a", f"{config.parent}/b"],
        "owner": {"cluster_id": "abc", "node_id": 5, "directory_id": ids[0]},
        "problems": [],
    }
    again = document("format", "-c", config, "-t", "abc", "--standalone", "--ignore-formatted")
    assert [one["is_new"] for one in again["folders"]] == [False, False]


def test_nothing_is_formatted(config: Path) -> None:
    result = run(None, "storage", "info", "-c", str(config), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "folders": [],
        "owner": None,
        "problems": [f"{config.parent}/a does not exist", f"{config.parent}/b does not exist"],
    }


def test_a_folder_that_is_damaged(config: Path) -> None:
    """A fault for which Kafka's tool prints a stack trace is reported in one line."""
    document("format", "-c", config, "-t", "abc", "--standalone")
    path = config.parent / "b" / "meta.properties"
    path.write_text(path.read_text().replace("node.id=5", "node.id=x"))
    result = run(None, "storage", "info", "-c", str(config))
    assert result.exit_code == 1
    assert f"Found problem:\n  Error loading {path}: not a number: 'x'\n" in result.stdout


def test_random_id() -> None:
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", document("random-uuid")["id"])


def test_a_file_that_is_no_text(config: Path) -> None:
    config.write_bytes(b"\xff\xfe")
    assert refusal(run(None, "storage", "info", "-c", str(config))).endswith("expected UTF-8 text, found other bytes")


def test_check(config: Path) -> None:
    """The lines, the status and the JSON document agree."""
    document("format", "-c", config, "-t", "abc", "--standalone", "-r", "4.2")
    folders = [f"{config.parent}/a", f"{config.parent}/b"]
    title = f"{', '.join(folders)}: node 5 of cluster abc, metadata.version 29 (4.2-IV1), 0 topics with 0 partitions\n"
    served = title + (
        "Apache Kafka 4.3 can serve it\n"
        "kbroker can serve it, but:\n"
        "  eligible.leader.replicas.version is finalized at level 1, which kbroker does not serve: it is kept, and "
        "level 0 is served\n"
    )
    assert printed(None, "storage", "check", *folders) == served
    result = run(None, "storage", "check", *folders, "--version", "4.1.2")
    lines = [
        "Apache Kafka 4.1 cannot serve it:",
        "  metadata.version is 29 (4.2-IV1), above 27 (4.1-IV1)",
        "  streams.version is 1, above 0",
    ]
    assert (result.exit_code, result.stdout.splitlines()[1:]) == (1, lines)
    found = document("check", *folders, "--version", "kbroker")
    (verdict,) = found.pop("verdicts")
    assert found == {
        "folders": folders,
        "cluster_id": "abc",
        "node_id": 5,
        "metadata_version": 29,
        "topics": 0,
        "partitions": 0,
    }
    assert (verdict["server"], verdict["can_serve"], verdict["obstacles"]) == ("kbroker", True, [])
    assert len(verdict["losses"]) == 1
    (config.parent / "empty").mkdir()
    empty = json.loads(run(None, "storage", "check", f"{config.parent}/empty", "--json").stdout)
    assert (empty["node_id"], empty["metadata_version"], empty["topics"]) == (None, None, None)


def test_check_of_an_unknown_version(config: Path) -> None:
    result = run(None, "storage", "check", str(config.parent), "--version", "3.9")
    assert refusal(result) == "Invalid value for --version: expected 4.0, 4.1, 4.2, 4.3 or kbroker, got 3.9"


def test_check_while_a_broker_runs(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    try:
        text = refusal(run(None, "storage", "check", str(tmp_path)))
    finally:
        lock.release()
    assert text.startswith(f"{tmp_path} is in use by this process already")


def test_versions_are_completed() -> None:
    complete = ShellComplete(cli, {}, "kbroker", "_KBROKER_COMPLETE")
    words = ["storage", "check", "d", "--version"]
    assert [item.value for item in complete.get_completions(words, "")] == ["4.0", "4.1", "4.2", "4.3", "kbroker"]
    assert [item.value for item in complete.get_completions(words, "k")] == ["kbroker"]
