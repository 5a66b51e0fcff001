"""The file ``quorum-state`` of the metadata log: the latest leader epoch that this node has recorded.

Source: ``FileQuorumStateStore``, ``QuorumStateData``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from kbroker.log.checkpoints import CorruptFileError, read_text, write_atomically

FILE_NAME = "quorum-state"
NO_DIRECTORY = "AAAAAAAAAAAAAAAAAAAAAA"
#: Largest supported data_version of the file.
DATA_VERSION = 1


class QuorumState(NamedTuple):
    """Leader and epoch of the quorum. ``leader_id``: -1 while there is none."""

    leader_id: int
    leader_epoch: int


def read_quorum_state(folder: Path) -> QuorumState | None:
    """Return the state of the partition in ``folder``, None without a file. Raises: CorruptFileError, OSError."""
    path = folder / FILE_NAME
    text = read_text(path)
    if text is None:
        return None
    try:
        version, leader, epoch = (_number(text, name) for name in ("data_version", "leaderId", "leaderEpoch"))
        if epoch < 0:
            raise ValueError("a leaderEpoch of 0 or more")
    except ValueError as error:
        raise CorruptFileError(f"{path}: expected {error} in JSON, found {text[:80]!r}") from None
    if version > DATA_VERSION:
        raise CorruptFileError(f"{path}: expected data_version {DATA_VERSION} at most, found {version}")
    return QuorumState(leader, epoch)


def write_quorum_state(folder: Path, state: QuorumState, kraft_version: int) -> None:
    """Write the state durably, in the form of the quorum's kraft.version. Raises: OSError."""
    leader = f'"leaderId":{state.leader_id},"leaderEpoch":{state.leader_epoch},"votedId":-1'
    if kraft_version == 0:
        voters = f'[{{"voterId":{state.leader_id}}}]'
        content = f'{{"clusterId":"",{leader},"appliedOffset":0,"currentVoters":{voters},"data_version":0}}'
    else:
        content = f'{{{leader},"votedDirectoryId":"{NO_DIRECTORY}","data_version":1}}'
    write_atomically(folder / FILE_NAME, content.encode())


def _number(text: str, name: str) -> int:
    """Return a number of a flat JSON object, without an import of the json module. Raises: ValueError."""
    found = re.search(rf'"{name}"\s*:\s*(-?[0-9]{{1,10}})\s*[,}}]', text)
    if found is None:
        raise ValueError(f"the number {name}")
    return int(found[1])
