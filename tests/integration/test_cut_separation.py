"""Power cut at every call of `kbroker storage separate`: the metadata of the broker is never lost."""

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from kbroker.log.checkpoints import uuid_to_text
from kbroker.metadata.log.folder_check import read_folders
from kbroker.metadata.log.metadata_log import FOLDER_NAME
from kbroker.metadata.records.snapshot_files import BOOTSTRAP_CHECKPOINT
from tests.support.cut_states import check_states, positions
from tests.support.disk_calls import Control, DiskCalls
from tests.support.disk_states import read_record

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SERVED = """
import sys
from kbroker.broker import Broker
from tests.support.client import Client, new_topics

with Broker({"listeners": "PLAINTEXT://127.0.0.1:0", "node.id": 5, "log.dirs": sys.argv[1]}) as broker:
    with Client(broker.bootstrap_servers) as client:
        assert client.call("CreateTopics", 7, new_topics("kept"))["Topics"][0]["ErrorCode"] == 0
"""


@pytest.mark.parametrize("is_same_disk", [True, False], ids=["one disk", "two disks"])
def test_a_cut_during_a_separation(tmp_path: Path, is_same_disk: bool) -> None:
    """Each state of the disk has the metadata in the log folder, or in the output with that of the controller."""
    place, output = tmp_path / "place", tmp_path / "place" / "new" / "output"
    place.mkdir()
    disk = DiskCalls(tmp_path, place)
    environment = {**os.environ, **disk.environment}
    control = Control(tmp_path / "disk_calls.control")
    control.set(record=tmp_path / "record")
    subprocess.run([sys.executable, "-c", SERVED, str(place / "data")], cwd=ROOT, env=environment, check=True)
    control.set()
    before = len(list(read_record(tmp_path / "record")))
    voter = f"101@127.0.0.1:9099:{uuid_to_text(uuid.UUID(int=7 << 64))}"
    words = ["storage", "separate", "--initial-controllers", voter, "--output", str(output), str(place / "data")]
    control.set(record=tmp_path / "second")
    command = [sys.executable, *(("-m", "kbroker") if is_same_disk else ("-c", TWO_DISKS)), *words]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    calls = [*read_record(tmp_path / "record"), *read_record(tmp_path / "second")]
    # a rename to another folder of one disk is one step, which the model divides until both folders are synced
    moves = (
        number for number, call in enumerate(calls) if call.name == "rename" and Path(call.path).name == FOLDER_NAME
    )
    move = next(moves) if is_same_disk else len(calls)
    chosen = {*range(before, move), len(calls) - 1}
    after = positions(calls, str(place), None, lambda _: None)
    states, different, wrong = check_states((one for one in after if one.number in chosen), _lost)
    print(f"{states} states, {different} of them different, of {len(calls) - before} calls")
    assert not wrong, "\n".join(wrong)
    assert states > 100


#: The command, while renames to another folder fail as between two disks, and files are copied by recorded calls.
TWO_DISKS = """
import errno, os, shutil, sys
from kbroker.cli import cli

rename = os.rename

def fail(source, target, **more):
    if os.path.dirname(source) != os.path.dirname(target):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    rename(source, target, **more)

os.rename = fail
shutil._USE_CP_SENDFILE = shutil._USE_CP_COPY_FILE_RANGE = False
cli(sys.argv[1:])
"""


def _lost(folder: Path, _: None) -> list[str]:
    """Return the losses in a state of the disk: metadata of the broker, in its folder or as it is moved back."""
    data, output = folder / "data", folder / "new" / "output"
    if not (data / FOLDER_NAME).is_dir():
        bootstrap = output / "controller-101" / BOOTSTRAP_CHECKPOINT
        if not bootstrap.is_file() or b"kept" not in bootstrap.read_bytes():
            return ["the controller has no metadata"]
        if not (output / "broker-5" / FOLDER_NAME).is_dir():
            return ["no folder has the metadata of the broker"]
        shutil.move(output / "broker-5" / FOLDER_NAME, data / FOLDER_NAME)
    found = read_folders([data])
    is_kept = found.metadata is not None and "kept" in found.metadata.image.topics
    return [] if is_kept else [f"the broker has no metadata: {found.fault}"]
