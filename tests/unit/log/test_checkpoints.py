"""State files of a log folder: Kafka's format, and refusal of damaged files."""

import os
import uuid
from pathlib import Path

import pytest

from kbroker.log import checkpoints as cp
from tests.support.errors import raising

ID = uuid.UUID("e3a98ad2-73a2-4a4c-b1aa-0b4e1cd7fd3e")


def test_offset_checkpoint_is_kafkas_text(tmp_path: Path) -> None:
    """The file has a version, a count, and one line per partition, and is read back."""
    file = cp.offset_checkpoint(tmp_path / cp.RECOVERY_POINT_CHECKPOINT)
    offsets = {("orders", 0): 5, ("orders", 11): 2**63 - 1, ("a.b_c-d", 3): 0}
    file.write(offsets)
    assert file.path.read_bytes() == b"0\n3\norders 0 5\norders 11 9223372036854775807\na.b_c-d 3 0\n"
    assert file.read() == offsets
    assert [p.name for p in tmp_path.iterdir()] == [cp.RECOVERY_POINT_CHECKPOINT]


def test_absent_and_empty_checkpoints_have_no_entries(tmp_path: Path) -> None:
    """A missing file, an empty file and a file without entries are read as no entries."""
    file = cp.offset_checkpoint(tmp_path / "c")
    assert file.read() == {}
    file.path.write_bytes(b"")
    assert file.read() == {}
    file.write({})
    assert file.path.read_bytes() == b"0\n0\n"
    assert file.read() == {}


@pytest.mark.parametrize(
    "damaged",
    [
        b"1\n0\n", b"x\n0\n", b"0\n", b"0\n-1\n", b"0\n1\n", b"0\n2\nt 0 1\n", b"0\n1\nt 0 1\nt 1 1\n", b"0\n1\nt 0\n",
        b"0\n1\nt 0 1 2\n", b"0\n1\nt x 1\n", b"0\n1\nt 0 9223372036854775808\n", b"0\n1\nt -1 1\n", b"0\n1\n\n",
        b"0\n1\nt 0 1_0\n", b"0\n2\nt 0 1\nt 0 2\n", b"\xff\xfe", b"0\n1\nt 99999999999 1\n", b"\0" * 4096,
    ],
)  # fmt: skip
def test_damaged_checkpoint_is_refused(tmp_path: Path, damaged: bytes) -> None:
    """The error names the damaged file."""
    path = tmp_path / "some-checkpoint"
    path.write_bytes(damaged)
    with pytest.raises(cp.CorruptFileError, match="some-checkpoint"):
        cp.offset_checkpoint(path).read()


def test_leader_epochs(tmp_path: Path) -> None:
    """Leader epochs and their start offsets are written as in Kafka, and read back."""
    file = cp.leader_epoch_checkpoint(tmp_path / cp.LEADER_EPOCH_CHECKPOINT)
    file.write({0: 0, 3: 17})
    assert file.path.read_bytes() == b"0\n2\n0 0\n3 17\n"
    assert file.read() == {0: 0, 3: 17}


def test_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed sync keeps the old checkpoint and leaves no other file."""
    file = cp.offset_checkpoint(tmp_path / "c")
    file.write({("t", 0): 1})
    monkeypatch.setattr(cp, "sync_descriptor", raising(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        file.write({("t", 0): 2})
    assert file.read() == {("t", 0): 1}
    assert os.listdir(tmp_path) == ["c"]


def test_write_syncs_file_then_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced before its rename, and the folder after it."""
    calls = []
    monkeypatch.setattr(cp, "sync_descriptor", lambda fd: calls.append(("file", sorted(os.listdir(tmp_path)))))
    monkeypatch.setattr(cp, "sync_folder", lambda folder: calls.append(("folder", sorted(os.listdir(tmp_path)))))
    cp.write_atomically(tmp_path / "c", b"x")
    assert calls == [("file", ["c.tmp"]), ("folder", ["c"])]


def test_meta_properties_round_trip(tmp_path: Path) -> None:
    """The file has version 1 with the ids of cluster, node and directory, as in Kafka, and is read back."""
    assert cp.read_meta_properties(tmp_path) is None
    owner = cp.MetaProperties("Y2x1c3Rlcg", 3, ID)
    cp.write_meta_properties(tmp_path, owner)
    text = (tmp_path / "meta.properties").read_text()
    assert text == "node.id=3\ndirectory.id=46mK0nOiSkyxqgtOHNf9Pg\nversion=1\ncluster.id=Y2x1c3Rlcg\n"
    assert cp.read_meta_properties(tmp_path) == owner


def test_meta_properties_of_java_are_read(tmp_path: Path) -> None:
    """Comments of Java's Properties and version 0 are accepted."""
    (tmp_path / "meta.properties").write_text("#\n#Sat Nov 21 2026\nbroker.id=7\nversion=0\ncluster.id=abc\n")
    assert cp.read_meta_properties(tmp_path) == cp.MetaProperties("abc", 7, version=0)


@pytest.mark.parametrize(
    "damaged",
    ["version=2\ncluster.id=a\nnode.id=1\n", "version=1\nnode.id=1\n", "version=1\ncluster.id=a\n",
     "version=1\ncluster.id=a\nnode.id=x\n", "version=1\ncluster.id=a\nnode.id=1\ndirectory.id=zz\n", "nonsense\n"],
)  # fmt: skip
def test_damaged_meta_properties_are_refused(tmp_path: Path, damaged: str) -> None:
    """The error names the damaged file."""
    (tmp_path / "meta.properties").write_text(damaged)
    with pytest.raises(cp.CorruptFileError, match=r"meta\.properties"):
        cp.read_meta_properties(tmp_path)


def test_foreign_folder_is_refused(tmp_path: Path) -> None:
    """The error for another cluster or node has the expected and the stored id."""
    owner = cp.MetaProperties("mine", 1)
    owner.check("mine", 1, tmp_path)
    owner.check(None, 1, tmp_path)
    with pytest.raises(cp.MetaPropertiesMismatch, match="Expected yours, but read mine"):
        owner.check("yours", 1, tmp_path)
    with pytest.raises(cp.MetaPropertiesMismatch, match="Stored node id 1 doesn't match previous node id 2"):
        owner.check("mine", 2, tmp_path)


def test_partition_metadata(tmp_path: Path) -> None:
    """The file has the topic id in Kafka's base64; a file emptied by a power cut has no id; damage is refused."""
    assert cp.read_partition_metadata(tmp_path) is None
    cp.write_partition_metadata(tmp_path, ID)
    assert (tmp_path / "partition.metadata").read_text() == "version: 0\ntopic_id: 46mK0nOiSkyxqgtOHNf9Pg"
    assert cp.read_partition_metadata(tmp_path) == ID
    for empty in ("", "\0" * 40, "\n"):
        (tmp_path / "partition.metadata").write_text(empty)
        assert cp.read_partition_metadata(tmp_path) is None
    for damaged in ("version: 1\ntopic_id: 46mK0nOiSkyxqgtOHNf9Pg", "version: 0\ntopic_id: x", "version: 0"):
        (tmp_path / "partition.metadata").write_text(damaged)
        with pytest.raises(cp.CorruptFileError, match=r"partition\.metadata"):
            cp.read_partition_metadata(tmp_path)
