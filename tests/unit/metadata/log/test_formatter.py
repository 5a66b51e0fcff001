"""Formatted folders have the bytes that Apache Kafka's kafka-storage writes, except random ids and times."""

import base64
import os
import re
import uuid
from pathlib import Path

import pytest

from kbroker.common.feature_versions import DEFAULT_FROM, default_level
from kbroker.common.listeners import Listener
from kbroker.log.checkpoints import MetaProperties, read_meta_properties, uuid_from_text, write_meta_properties
from kbroker.metadata.log import formatter
from kbroker.metadata.log.formatter import FormatError, format_folders, make_voter, standalone_voter
from kbroker.metadata.log.scram_arguments import credential_record
from kbroker.metadata.records.snapshot_files import read_snapshot
from tests.support.errors import raising
from tests.support.formatted import files, without_times

NOW_MS = 1_700_000_000_000
CREDENTIAL = (
    'SCRAM-SHA-512=[name=bob,iterations=8192,salt="MWx2NHBkbnc0ZndxN25vdGN4bTB5eTFrN3E=",'
    'saltedpassword="mT0yyUUxnlJaC99HXgRTSYlbuqa4FSGtJCJfTMvjYCE="]'
)
IDS = ("JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A", "07R5amHmR32VDA6jHkGbTA")
#: kafka-storage 4.3.1 format -t 'abc def:=#' -I '1@h:9093:ID,2@[::1]:9094:ID,17@x:1:ID' -S CREDENTIAL
PROPERTIES = (
    "#\n#Thu Nov 26 17:46:05 UTC 2026\nnode.id=1\ndirectory.id=JEXY6aqzQY-32P5TStzaFg\nversion=1\n"
    "cluster.id=abc def\\:\\=\\#\n"
)
BOOTSTRAP = """
AAAAAAAAAAAAAABHAAAAAAK7la76ACAAAAAAAAABohj27NoAAAGiGPbs2v//////////////////AAAAASoAAAAIAAAAAxYAAAAAAAAAAAAAAAAA
AAAAAAAAAQAAAaQAAAAAArN1nLUAAAAAAAYAAAGiGPbs+AAAAaIY9uz4//////////////////8AAAAHOgAAAAEuAQwAEW1ldGFkYXRhLnZlcnNp
b24AHgAAWgAAAgFOAQwAIWVsaWdpYmxlLmxlYWRlci5yZXBsaWNhcy52ZXJzaW9uAAEAADQAAAQBKAEMAA5ncm91cC52ZXJzaW9uAAEAADQAAAYB
KAEMAA5zaGFyZS52ZXJzaW9uAAEAADgAAAgBLAEMABBzdHJlYW1zLnZlcnNpb24AAQAAQAAACgE0AQwAFHRyYW5zYWN0aW9uLnZlcnNpb24AAgAA
4gIAAAwB1AIBCwAEYm9iAhsxbHY0cGRudzRmd3E3bm90Y3htMHl5MWs3cUE5MlojTGtVUCvDYw0zfl4Y1W+jtk5t92YHqPblM+iTL/dOvIGpXIM7
7HBn1rKnZvy+UDJO6HfMgaImlcbk+U0FQUgBbWry83viQUjIVZlcUDrh+ZkZHbKxOAo7SJfywPufacKEguH5CcfJ/iZxfiynnT2Vk2otm75AqHLR
bZ/c2ccAACAAAAAAAAAAAAAACAAAAD8AAAAAAtb166MAIAAAAAAAAAGiGPbs+AAAAaIY9uz4//////////////////8AAAABGgAAAAgAAAAEBgAA
AAA=
"""
VOTERS = """
AAAAAAAAAAAAAAD3AAAAAAKHKI3zACAAAAACAAABohj27RkAAAGiGPbtGf//////////////////AAAAAyoAAAAIAAAAAxYAAAAAAaIY9u0GAAAe
AAACCAAAAAUKAAAAAQAAvAIAAAQIAAAABqYCAAAEAAAAASRF2Omqs0GPt9j+U0rc2hYCC0NPTlRST0xMRVICaCOFAAAAAAEAAAAAABHTtHlqYeZH
fZUMDqMeQZtMAgtDT05UUk9MTEVSAngAAQAAAAABAAAAAAACMvDxzVmcRsaTz33bUuRU6AILQ09OVFJPTExFUhAwOjA6MDowOjA6MDowOjEjhgAA
AAABAAAAAAAAAAAAAAADAAAAPwAAAAACuhPq5AAgAAAAAAAAAaIY9u0nAAABohj27Sf//////////////////wAAAAEaAAAACAAAAAQGAAAAAA==
"""


def listener(host: str, port: int) -> Listener:
    return Listener("CONTROLLER", "PLAINTEXT", host, port)


def all_defaults(level: int) -> dict[str, int]:
    """Return the feature levels that Kafka's tool chooses for a level of metadata.version."""
    return {"metadata.version": level, **{name: default_level(name, level) for name in DEFAULT_FROM}}


def test_the_files_are_those_of_kafka(tmp_path: Path) -> None:
    """Files equal Kafka's for three voters, this node among them, and a user. A second folder has no metadata log."""
    voters = [
        make_voter(node_id, uuid_from_text(directory_id), listener(host, port))
        for node_id, directory_id, host, port in zip((1, 2, 17), IDS, ("h", "::1", "x"), (9093, 9094, 1), strict=True)
    ]
    lines: list[str] = []
    first, second = tmp_path / "a", tmp_path / "deep" / "b"
    done = format_folders(
        [second, first],
        first,
        cluster_id="abc def:=#",
        node_id=1,
        now_ms=NOW_MS,
        voters=voters,
        levels=all_defaults(30),
        credentials=[credential_record(CREDENTIAL)],
        report=lines.append,
    )
    snapshot = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
    recorded = {
        "0/meta.properties": PROPERTIES.encode(),
        "0/bootstrap.checkpoint": base64.b64decode(BOOTSTRAP),
        f"0/{snapshot}": base64.b64decode(VOTERS),
    }
    assert files(first) == {name: without_times(name.rpartition("/")[2], data) for name, data in recorded.items()}
    assert [*files(second)] == ["0/bootstrap.checkpoint", "0/meta.properties"]
    assert (first / "bootstrap.checkpoint").read_bytes() == (second / "bootstrap.checkpoint").read_bytes()
    assert os.stat(first / snapshot).st_mode & 0o777 == 0o444
    assert {path: read_meta_properties(path) for path in (first, second)} == done.owners
    assert done.owners[first] == MetaProperties("abc def:=#", 1, uuid_from_text(IDS[0]))
    times = {batch.timestamp_ms for batch in read_snapshot(first / snapshot)}
    assert times == {NOW_MS}
    assert "UserScramCredentialRecord(name='bob', mechanism=2, iterations=8192) at version 0)" in lines[0]
    assert sorted(lines[1:]) == [
        f"Formatting data directory {second} with metadata.version 4.3-IV0.",
        f"Formatting dynamic metadata voter directory {first} with metadata.version 4.3-IV0.",
    ]


def test_a_standalone_node_finalizes_what_kbroker_serves(tmp_path: Path) -> None:
    voter = standalone_voter(4, listener("localhost", 9093))
    done = format_folders([tmp_path], tmp_path, cluster_id="c", node_id=4, now_ms=NOW_MS, voters=[voter])
    assert done.owners[tmp_path].directory_id == voter.directory_id
    bodies = [record.body for batch in read_snapshot(tmp_path / "bootstrap.checkpoint") for record in batch.records]
    levels = {body["Name"]: body["FeatureLevel"] for body in bodies}
    versions = {"group.version": 1, "share.version": 1, "streams.version": 1, "transaction.version": 2}
    assert levels == {"metadata.version": 30, **versions}


def test_formatted_folders_are_left_alone(tmp_path: Path) -> None:
    """A second call is refused; with skip_formatted only new folders are formatted."""
    one, two = tmp_path / "1", tmp_path / "2"

    def again(skip_formatted: bool, cluster_id: str = "c", node_id: int = 1) -> list[str]:
        lines: list[str] = []
        format_folders(
            [one, two],
            one,
            cluster_id=cluster_id,
            node_id=node_id,
            now_ms=NOW_MS,
            skip_formatted=skip_formatted,
            report=lines.append,
        )
        return lines

    format_folders([one], one, cluster_id="c", node_id=1, now_ms=NOW_MS)
    before = {path: path.read_bytes() for path in one.rglob("*") if path.is_file()}
    with pytest.raises(FormatError, match=re.escape(f"Log directory {one} is already formatted. Use --ignore")):
        again(skip_formatted=False)
    with pytest.raises(FormatError, match=re.escape(f"Invalid cluster.id in: {one}/meta.properties. Expected d")):
        again(skip_formatted=True, cluster_id="d")
    with pytest.raises(FormatError, match="Stored node id 1 doesn't match previous node id 2"):
        again(skip_formatted=True, node_id=2)
    assert not two.exists()
    assert again(skip_formatted=True)[1:] == [f"Formatting data directory {two} with metadata.version 4.3-IV0."]
    assert again(skip_formatted=True) == ["All of the log directories are already formatted."]
    assert before == {path: path.read_bytes() for path in one.rglob("*") if path.is_file()}
    (two / "meta.properties").write_bytes((one / "meta.properties").read_bytes())
    with pytest.raises(FormatError, match=r"Duplicate directory ID Optional\[\S+\] found. It was the ID of "):
        again(skip_formatted=True)
    write_meta_properties(two, MetaProperties("c", 1, uuid.UUID(int=7)))
    with pytest.raises(FormatError, match=f"Invalid reserved directory ID AAAAAAAAAAAAAAAAAAAABw found in {two}"):
        again(skip_formatted=True)
    (two / "meta.properties").write_text("version=2\n")
    assert again(skip_formatted=True)[0] == f"I/O error trying to read log directory {two}. Ignoring..."


def test_a_crash_before_the_end_is_repaired_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without meta.properties counts as not formatted, regardless of its other files."""
    voter = standalone_voter(1, listener("localhost", 9093))
    with monkeypatch.context() as patch:
        patch.setattr(formatter, "write_meta_properties", raising(OSError("power cut")))
        with pytest.raises(OSError, match="power cut"):
            format_folders([tmp_path], tmp_path, cluster_id="c", node_id=1, now_ms=NOW_MS, voters=[voter])
    format_folders([tmp_path], tmp_path, cluster_id="c", node_id=1, now_ms=NOW_MS + 1, voters=[voter])
    snapshot = tmp_path / "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
    assert {batch.timestamp_ms for batch in read_snapshot(snapshot)} == {NOW_MS + 1}


def test_folders_that_cannot_be_formatted(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="You must specify at least one directory to format"):
        format_folders([], tmp_path, cluster_id="c", node_id=1, now_ms=NOW_MS)
    with pytest.raises(FormatError, match="was not one of the given directories"):
        format_folders([tmp_path / "a"], tmp_path, cluster_id="c", node_id=1, now_ms=NOW_MS)
    (tmp_path / "file").touch()
    lines: list[str] = []
    with pytest.raises(FormatError, match=r"No available log directories to format\."):
        format_folders(
            [tmp_path / "file"], tmp_path / "file", cluster_id="c", node_id=1, now_ms=NOW_MS, report=lines.append
        )
    assert lines == [f"I/O error trying to read log directory {tmp_path / 'file'}. Ignoring..."]


def test_a_salted_password_is_not_empty() -> None:
    """Any client could log in with the keys of an empty salted password."""
    with pytest.raises(FormatError, match="The 'saltedpassword' value must not be empty for add-scram"):
        credential_record('SCRAM-SHA-256=[name=a,salt="N3E=",saltedpassword=""]')
