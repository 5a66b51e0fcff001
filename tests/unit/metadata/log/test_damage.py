"""A start refuses a damaged metadata log or loads it completely. Only the incomplete end after a crash is cut off."""

import logging
import random
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.log.folder_check import read_folders
from kbroker.metadata.log.loader import LoadedMetadata
from kbroker.metadata.log.metadata_log import FOLDER_NAME, LogFiles, MetadataLogError
from kbroker.metadata.log.recovery import RecoveryError, recover
from kbroker.metadata.records.batches import read_batches
from kbroker.metadata.records.metadata_record import MetadataRecord
from tests.support import metadata_images
from tests.support.metadata import DIRECTORY_ID, LoggedController, change, content, group_config, start_metadata
from tests.support.metadata_images import partition, read

FLIPS = 240
LOG = f"{0:020}.log"


def topic(number: int) -> list[MetadataRecord]:
    rows = partition(number, Replicas=[1], Isr=[1], Directories=[DIRECTORY_ID])
    return read((metadata_images.topic(f"topic-{number}", number), rows))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a broker that had three starts and clean stops, with a snapshot in the middle."""
    folder = tmp_path_factory.mktemp("filled")
    for start in range(3):
        controller = LoggedController(folder)
        for number in range(12):
            change(controller, *topic(20 * start + number))
        if start == 1:
            image = controller.image
            controller.log.write_snapshot(records_of(image, image.level), image.offset, image.epoch, 1)
        controller.close()
    return folder


def copy(filled: Path, folder: Path) -> Path:
    """Copy a data folder and return the folder of its metadata log."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(filled, folder, copy_function=shutil.copyfile)  # without modes: snapshots are read-only
    return folder / FOLDER_NAME


def snapshot_of(log: Path) -> Path:
    """Return the only snapshot above offset 0."""
    (found,) = (path for path in log.glob("*.checkpoint") if not path.name.startswith("0" * 20))
    return found


def test_a_flipped_bit_is_refused_or_harmless(filled: Path, tmp_path: Path, soak: bool) -> None:
    """A start after a clean stop loads all records or names the damaged file, whichever file has the flipped bit."""
    data = tmp_path / "data"
    copy(filled, data)
    expected = content(start_metadata(data, is_clean=True))
    assert len(expected.topics) == 36
    files = sorted(path.relative_to(filled) for path in (filled / FOLDER_NAME).iterdir() if path.stat().st_size)
    rng = random.Random(7)
    refused: dict[str, list[str]] = {}
    flips = 8_000 if soak else FLIPS
    for number in range(flips):
        copy(filled, data)
        # half of the flips are in the segment
        file = data / (Path(FOLDER_NAME) / LOG if number % 2 else files[number // 2 % len(files)])
        content_ = bytearray(file.read_bytes())
        at = rng.randrange(len(content_))
        content_[at] ^= 1 << rng.randrange(8)
        file.write_bytes(content_)
        try:
            found = content(start_metadata(data, is_clean=True))
        except MetadataLogError as error:
            refused.setdefault(file.name, []).append(str(error))
            continue
        assert found == expected, (file, at)
    expected_text = re.compile(
        rf"(?=.*{re.escape(str(data / FOLDER_NAME))}).*"
        rf"(recover-metadata {re.escape(str(data))}'|has type|remove that file)"
    )
    assert [text for texts in refused.values() for text in texts if not expected_text.match(text)] == []
    assert len(refused[LOG]) > flips // 2 * 0.3, "flips after the snapshot are refused"
    assert len(refused[f"{0:020}-{0:010}.checkpoint"]) > 5


def batch_ends(data: bytes) -> list[int]:
    """Return the end positions of the batches, after 0."""
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + 12 + int.from_bytes(data[ends[-1] + 8 : ends[-1] + 12], "big"))
    return ends


def test_a_torn_tail_is_cut_off_with_a_warning(filled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a crash, a cut at any byte of the last batches leaves the complete changes before it."""
    whole = (filled / FOLDER_NAME / LOG).read_bytes()
    ends = batch_ends(whole)
    for size in range(ends[-3], len(whole)):
        log = copy(filled, tmp_path / "data")
        (log / LOG).write_bytes(whole[:size])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            image = start_metadata(tmp_path / "data", is_clean=False)
        complete = sum(end <= size for end in ends) - 1
        assert len(image.topics) == 36 - (len(ends) - 1 - complete)
        warnings = [record.message for record in caplog.records if "were cut" in record.message]
        if size in ends:
            assert warnings == []
        else:
            assert len(warnings) == 1
            assert warnings[0].startswith(f"{log}: {size - ends[complete]} bytes from byte {ends[complete]} of segment")


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\xff" * 100, b"damaged" * 30])
def test_other_bytes_at_the_end_are_cut_off(filled: Path, tmp_path: Path, tail: bytes) -> None:
    """A file system may extend a file before it writes the content."""
    log = copy(filled, tmp_path)
    with (log / LOG).open("ab") as file:
        file.write(tail)
    assert len(start_metadata(tmp_path, is_clean=False).topics) == 36


def test_damage_before_sound_batches_is_refused(filled: Path, tmp_path: Path) -> None:
    """Damage of any batch but the last one is refused, because the records after it were acknowledged."""
    whole = (filled / FOLDER_NAME / LOG).read_bytes()
    ends = batch_ends(whole)
    for begin, end in pairwise(ends[:-1]):
        data = bytearray(whole)
        data[(begin + end) // 2 + 20] ^= 4
        log = copy(filled, tmp_path / "data")
        snapshot_of(log).unlink()
        (log / LOG).write_bytes(data)
        for is_clean in (False, True):
            with pytest.raises(MetadataLogError) as caught:
                start_metadata(tmp_path / "data", is_clean=is_clean)
            assert re.match(rf"{re.escape(str(log))} is damaged: .*(byte|offset)", str(caught.value))
        assert (log / LOG).read_bytes() == data, "the segment is unchanged"


def test_each_byte_of_a_header_counts(filled: Path, tmp_path: Path) -> None:
    """Damage in a header is refused even where the checksum does not cover the byte; no later batch is cut off."""
    assert_refused(filled, tmp_path, -4, 61, "is damaged", is_clean=True)


def test_a_batch_at_a_wrong_offset_is_not_the_tail_of_a_crash(filled: Path, tmp_path: Path) -> None:
    """A correct checksum shows that the last batch was written completely and may have been acknowledged."""
    said = r"found one of offset .* since the checksum is correct"
    assert_refused(filled, tmp_path, -2, 8, said, is_clean=False)


def assert_refused(filled: Path, tmp_path: Path, end: int, count: int, match: str, is_clean: bool) -> None:
    """Damage each of the bytes after the end of a batch; none of these logs is opened."""
    whole = (filled / FOLDER_NAME / LOG).read_bytes()
    begin = batch_ends(whole)[end]
    log = copy(filled, tmp_path / "data")
    for at in range(begin, begin + count):
        data = bytearray(whole)
        data[at] ^= 0x80
        (log / LOG).write_bytes(data)
        with pytest.raises(MetadataLogError, match=match):
            start_metadata(tmp_path / "data", is_clean=is_clean)


def test_the_last_batch_of_a_log_that_was_closed_is_not_cut_off(filled: Path, tmp_path: Path) -> None:
    """A clean stop flushes the log, so an invalid last batch is damage."""
    log = copy(filled, tmp_path)
    data = bytearray((log / LOG).read_bytes())
    data[-10] ^= 1
    (log / LOG).write_bytes(data)
    with pytest.raises(MetadataLogError, match="is damaged"):
        start_metadata(tmp_path, is_clean=True)


def test_a_lost_or_exchanged_batch_is_refused(filled: Path, tmp_path: Path) -> None:
    """Sound batches are refused if one is missing or two are in the wrong order."""
    whole = (filled / FOLDER_NAME / LOG).read_bytes()
    a, b, c, d = batch_ends(whole)[3:7]
    for data in (whole[:b] + whole[c:], whole[:a] + whole[b:c] + whole[a:b] + whole[c:], whole[:b] + whole[a:]):
        assert len(list(read_batches(data))) > 30
        log = copy(filled, tmp_path / "data")
        (log / LOG).write_bytes(data)
        for is_clean in (False, True):
            with pytest.raises(MetadataLogError, match="is damaged"):
                start_metadata(tmp_path / "data", is_clean=is_clean)
    assert d


def test_a_damaged_snapshot_is_replaced_by_an_older_one(
    filled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A start loads an older snapshot if the log has all later records."""
    log = copy(filled, tmp_path)
    snapshot = snapshot_of(log)
    data = bytearray(snapshot.read_bytes())
    data[len(data) // 2] ^= 1
    snapshot.write_bytes(data)
    assert len(start_metadata(tmp_path, is_clean=True).topics) == 36
    assert f"{snapshot} cannot be used, an older one is loaded: {snapshot}: " in caplog.text


def test_a_snapshot_without_the_first_partition_of_a_topic(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has all records and replaces the snapshot, as it replaces any damaged one."""
    controller = LoggedController(tmp_path)
    image = controller.image
    records = [*records_of(image, image.level), *read((metadata_images.topic("t", 1), partition(1, 1)))]
    controller.log.write_snapshot(records, image.offset, image.epoch, 1)
    controller.close()
    assert not start_metadata(tmp_path, is_clean=True).topics
    assert "an older one is loaded: topic t: expected partition 0 before partition 1" in caplog.text


def test_a_log_without_the_first_partition_of_a_topic(tmp_path: Path) -> None:
    """A start refuses the log and advises a recovery, which keeps the records of the previous snapshot."""
    controller = LoggedController(tmp_path)
    change(controller, group_config("g"))
    image = controller.image
    controller.log.write_snapshot(records_of(image, image.level), image.offset, image.epoch, 1)
    controller.storage.append(read((metadata_images.topic("t", 1), partition(1, 1))), image.level, frees_space=False)
    controller.close()
    with pytest.raises(MetadataLogError, match=r"is damaged: topic t: expected partition 0 before .*; rebuild it"):
        start_metadata(tmp_path, is_clean=True)
    kept = LoadedMetadata(LogFiles(tmp_path), is_salvage=True)
    assert (kept.image.configs, kept.image.topics) == (image.configs, {})


@pytest.mark.parametrize("content", [b"", bytes(8), b"0\n1\n3 ", b"\xff" * 8])
def test_a_damaged_epoch_checkpoint_is_made_again(filled: Path, tmp_path: Path, content: bytes) -> None:
    """The checkpoint is renamed without a sync, so that its content may be missing after a power cut."""
    path = copy(filled, tmp_path) / "leader-epoch-checkpoint"
    whole = path.read_bytes()
    path.write_bytes(content)
    assert len(start_metadata(tmp_path, is_clean=False).topics) == 36
    assert path.read_bytes().startswith(whole[:2])
    assert len(path.read_bytes()) > len(whole)


@pytest.mark.parametrize("content", [b"", bytes(44), b"version: 0\ntopic_id: AAAAAAA", b"version: 0", b"\xff" * 44])
def test_a_damaged_topic_id_is_written_anew(filled: Path, tmp_path: Path, content: bytes) -> None:
    """A sound log is not refused because of this file: its topic id is a constant."""
    path = copy(filled, tmp_path) / "partition.metadata"
    whole = path.read_bytes()
    path.write_bytes(content)
    assert len(start_metadata(tmp_path, is_clean=True).topics) == 36
    assert path.read_bytes() == whole


def test_the_topic_id_of_another_topic_is_refused(filled: Path, tmp_path: Path) -> None:
    """The way out that the error names works: a recovery would find nothing to recover."""
    path = copy(filled, tmp_path) / "partition.metadata"
    path.write_text("version: 0\ntopic_id: 46mK0nOiSkyxqgtOHNf9Pg\n")
    with pytest.raises(MetadataLogError, match=r"46mK0nOiSkyxqgtOHNf9Pg, not A{21}Q; remove that file if the other "):
        start_metadata(tmp_path, is_clean=True)
    path.unlink()
    assert len(start_metadata(tmp_path, is_clean=True).topics) == 36


def test_a_log_that_ends_before_its_snapshot_is_refused(filled: Path, tmp_path: Path) -> None:
    """A start refuses the log because the records between its end and the snapshot are lost."""
    log = copy(filled, tmp_path)
    data = (log / LOG).read_bytes()
    (log / LOG).write_bytes(data[: batch_ends(data)[5]])
    for is_clean in (False, True):
        with pytest.raises(MetadataLogError, match=r"ends at offset \d+, expected \d+ or more, the end of 0{18}\d\d-"):
            start_metadata(tmp_path, is_clean=is_clean)


def test_a_log_without_its_first_segment_is_refused(filled: Path, tmp_path: Path) -> None:
    """A start refuses a log that begins above offset 0 without a snapshot of the earlier records."""
    log = copy(filled, tmp_path)
    (log / LOG).rename(log / f"{5:020}.log")
    for path in log.glob("*.checkpoint"):
        path.unlink()
    with pytest.raises(MetadataLogError, match="is damaged"):
        start_metadata(tmp_path, is_clean=True)


def flip_first_batch(log: Path) -> None:
    data = bytearray((log / LOG).read_bytes())
    data[100] ^= 1
    snapshot_of(log).unlink()
    (log / LOG).write_bytes(data)


def flip_first_voters(log: Path) -> None:
    path = log / f"{0:020}-{0:010}.checkpoint"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_below_snapshot(log: Path) -> None:
    data = (log / LOG).read_bytes()
    (log / LOG).write_bytes(data[: batch_ends(data)[5]])


def set_state(text: str) -> Callable[[Path], None]:
    def apply(log: Path) -> None:
        (log / "quorum-state").write_text(text)

    return apply


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip_first_batch, "is damaged: "),
        (flip_first_voters, "is damaged: "),
        (cut_below_snapshot, "ends at offset"),
        (set_state("{"), "quorum-state: expected "),
        (
            set_state('{"leaderId":1,"leaderEpoch":2147483647,"votedId":-1,"data_version":1}'),
            "is damaged: expected leader epochs below 2147483647, found 2147483647",
        ),
    ],
)
def test_the_advice_names_every_log_folder(
    filled: Path, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    """The advice names the folder of the log first and then the others, whose partitions a recovery would delete."""
    home, other = tmp_path / "home", tmp_path / "another"
    other.mkdir()
    damage(copy(filled, home))
    advice = f"rebuild it with 'kbroker log recover-metadata {home} {other}', or restore it from a backup"
    with pytest.raises(MetadataLogError, match=re.escape(reason)) as caught:
        start_metadata(home, other, is_clean=True)
    assert str(caught.value).endswith(advice)
    for folders in ([home, other], [other, home]):
        fault = read_folders(folders).fault
        assert reason in fault
        assert fault.endswith(advice)


def test_the_log_is_in_another_folder(filled: Path, tmp_path: Path) -> None:
    """Neither a start nor a recovery begins a new cluster when another order of log.dirs hides the log."""
    home, other = tmp_path / "home", tmp_path / "another"
    (other / "topic-0-0").mkdir(parents=True)
    copy(filled, home)
    (home / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    before = sorted(tmp_path.rglob("*"))
    sentence = re.escape(f"{other} has no metadata log, but {home} has it: ")
    with pytest.raises(MetadataLogError, match=f"^{sentence}set metadata.log.dir={re.escape(str(home))}, or name that"):
        start_metadata(other, home, is_clean=True)
    with pytest.raises(RecoveryError, match=f"^{sentence}nothing is recovered; set metadata.log.dir="):
        recover(other, 1, [home])
    left = {path for path in tmp_path.rglob("*") if path.name != ".lock"}
    assert left == set(before)
    assert len(start_metadata(home, other, is_clean=True).topics) == 36
