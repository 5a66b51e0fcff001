"""Tests of ``quorum-state`` at both levels of kraft.version."""

import json
from pathlib import Path

import pytest

from kbroker.log.checkpoints import CorruptFileError
from kbroker.metadata.log.quorum_state import FILE_NAME, QuorumState, read_quorum_state, write_quorum_state


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_what_was_written_is_read(tmp_path: Path, kraft_version: int) -> None:
    assert read_quorum_state(tmp_path) is None
    state = QuorumState(3, 17)
    write_quorum_state(tmp_path, state, kraft_version)
    assert read_quorum_state(tmp_path) == state
    content = json.loads((tmp_path / FILE_NAME).read_text())
    assert content["data_version"] == kraft_version
    assert ("currentVoters" in content) == (kraft_version == 0)
    assert ("votedDirectoryId" in content) == (kraft_version == 1)


@pytest.mark.parametrize("epoch", [0, 4])
def test_a_state_of_kafka_is_read(tmp_path: Path, epoch: int) -> None:
    """A node that has voted but has no leader yet is read, as is one before any election."""
    text = f'"leaderEpoch":{epoch},"votedId":1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1'
    (tmp_path / FILE_NAME).write_text(f'{{"leaderId":-1,{text}}}')
    assert read_quorum_state(tmp_path) == QuorumState(-1, epoch)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"leaderId":1,"leaderEpoch":2}',
        '{"leaderId":1,"leaderEpoch":"2","data_version":1}',
        '{"leaderId":1,"leaderEpoch":true,"data_version":1}',
        '{"leaderId":1,"leaderEpoch":-1,"data_version":1}',
        '{"leaderId":1,"leaderEpoch":2,"data_version":2}',
    ],
)
def test_damage_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(CorruptFileError, match=f"{FILE_NAME}: expected "):
        read_quorum_state(tmp_path)
