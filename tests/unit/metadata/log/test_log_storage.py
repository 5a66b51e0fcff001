"""The metadata log as the controller's storage: epochs, voters, transactions of records, and failures of the disk."""

import errno
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.configs.config_quorum import DEFAULT_VOTER
from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.errors import Errors, KafkaError, OutcomeUnknownError
from kbroker.metadata.log.formatter import format_folders, make_voter, standalone_voter, write_bootstrap
from kbroker.metadata.log.loader import LoadedMetadata
from kbroker.metadata.log.metadata_log import (
    FOLDER_NAME,
    RESERVE_BYTES,
    RESERVE_NAME,
    START_BYTES,
    LogFiles,
    MetadataLogError,
)
from kbroker.metadata.log.opening import open_metadata
from kbroker.metadata.log.quorum_state import read_quorum_state
from kbroker.metadata.records.batches import BATCH_RECORDS, MetadataBatch, build_records
from kbroker.metadata.records.control_records import KRaftVersion, LeaderChange, Voters
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record
from tests.support.errors import raising
from tests.support.metadata import DIRECTORY_ID, LoggedController, change, group_config, groups, start_metadata

BEGIN, END, ABORT = "BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"


def groups_after_start(folder: Path, *, is_clean: bool = True) -> list[str]:
    """Start a controller and close it; return the names of the groups with configs."""
    controller = LoggedController(folder, is_clean=is_clean)
    controller.close()
    return groups(controller)


def batches(folder: Path) -> list[MetadataBatch]:
    return list(LogFiles(folder).batches(0))


def test_every_start_begins_an_epoch(tmp_path: Path) -> None:
    """A start begins a new epoch, above those in the log and in quorum-state. Its first record names the leader."""
    for epoch in range(1, 5):
        controller = LoggedController(tmp_path)
        assert controller.epoch == epoch
        change(controller, group_config(epoch))
        controller.close()
        state = read_quorum_state(tmp_path / FOLDER_NAME)
        assert state is not None
        assert (state.leader_id, state.leader_epoch) == (1, epoch)
    found = batches(tmp_path)
    leaders = [batch for batch in found if batch.control and isinstance(batch.control[0], LeaderChange)]
    assert [batch.leader_epoch for batch in leaders] == [1, 2, 3, 4]
    assert sorted({batch.leader_epoch for batch in found}) == [1, 2, 3, 4]
    state_file = tmp_path / FOLDER_NAME / "quorum-state"
    state_file.write_text(state_file.read_text().replace('"leaderEpoch":4', '"leaderEpoch":40'))
    controller = LoggedController(tmp_path)
    assert controller.epoch == 41, "after an epoch without records"
    controller.close()


def test_a_change_of_more_than_a_mebibyte(tmp_path: Path) -> None:
    """A change is stored up to the size of a batch of Kafka's controllers; that of a topic's records does not apply."""
    controller = LoggedController(tmp_path)
    of_group = {"ResourceType": ConfigResourceType.GROUP, "ResourceName": "g"}
    value = "x" * 30_000
    records = [metadata_record("ConfigRecord", {**of_group, "Name": f"k{i}", "Value": value}) for i in range(40)]
    change(controller, *records)
    controller.close()
    assert groups_after_start(tmp_path) == ["g"]


def test_a_new_quorum_has_its_voters_in_the_log(tmp_path: Path) -> None:
    """Voters and kraft.version 1 follow the first leader record; later epochs do not repeat them."""
    for _ in range(2):
        controller = LoggedController(tmp_path)
        assert controller.kraft_version == 1
        controller.close()
    control = [one for batch in batches(tmp_path) for one in batch.control]
    assert [type(one) for one in control] == [LeaderChange, KRaftVersion, Voters, LeaderChange]
    voters = control[2]
    assert isinstance(voters, Voters)
    assert [(voter.id, voter.directory_id) for voter in voters.voters] == [(1, DIRECTORY_ID)]


def test_a_quorum_of_the_configs_has_no_voters_in_the_log(tmp_path: Path) -> None:
    """With controller.quorum.voters, kraft.version is 0 and quorum-state lists the voters, as in Kafka."""
    config = BrokerConfig({"node.id": 1, "controller.quorum.voters": "1@localhost:9093"})
    for _ in range(2):
        storage, image = open_metadata(tmp_path, [], DIRECTORY_ID, config, VirtualClock(), is_clean=True)
        storage.flush()
        storage.log.close()
    assert (storage.kraft_version, image.features["metadata.version"]) == (0, 30)
    assert {type(one) for batch in batches(tmp_path) for one in batch.control} == {LeaderChange}
    assert '"currentVoters":[{"voterId":1}]' in (tmp_path / FOLDER_NAME / "quorum-state").read_text()


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([2], "serve it with Apache Kafka, or remove the other voters there first"),
        ([1, 2], "serve it with Apache Kafka, or remove the other voters there first"),
        ([1], "if meta.properties was lost, set directory.id="),
    ],
)
def test_a_quorum_of_other_voters_is_refused(tmp_path: Path, ids: list[int], text: str) -> None:
    """Another node, several voters, or another directory id of this node is refused, and no record is appended."""
    voters = [make_voter(one, uuid.UUID(int=500 + one), DEFAULT_VOTER) for one in ids]
    format_folders([tmp_path], tmp_path, cluster_id="c", node_id=1, now_ms=1, voters=voters)
    with pytest.raises(MetadataLogError) as caught:
        LoggedController(tmp_path)
    assert text in str(caught.value)
    assert "as the only voter of the quorum, found" in str(caught.value)
    assert LogFiles(tmp_path).is_empty


def test_a_formatted_folder_is_served(tmp_path: Path) -> None:
    """The log begins with the folder's bootstrap records, which include Kafka's default of min.insync.replicas."""
    voter = standalone_voter(1, DEFAULT_VOTER)
    format_folders([tmp_path], tmp_path, cluster_id="c", node_id=1, now_ms=1, voters=[voter])
    image = start_metadata(tmp_path, directory_id=voter.directory_id)
    assert image.configs == {(4, ""): {"min.insync.replicas": "1"}}
    records = [record for batch in batches(tmp_path) for record in batch.records]
    assert (records[0].name, records[0].body["Name"], records[-1].name) == (BEGIN, "Bootstrap records", END)


def test_a_large_change_is_a_transaction(tmp_path: Path) -> None:
    """A large change is written in batches of limited size between the begin and the end of a transaction."""
    controller = LoggedController(tmp_path)
    change(controller, *(group_config(number) for number in range(25_000)))
    assert len(groups(controller)) == 25_000
    controller.close()
    found = [batch.records for batch in batches(tmp_path) if batch.records][1:]
    assert {len(records) for records in found[:-1]} == {BATCH_RECORDS}
    assert sum(map(len, found)) == 25_002
    assert (found[0][0].name, found[-1][-1].name) == (BEGIN, END)
    assert len(groups_after_start(tmp_path)) == 25_000


@pytest.mark.parametrize("kept", [1, 2])
def test_a_large_change_that_a_crash_cut_short_does_not_count(tmp_path: Path, kept: int) -> None:
    """The next start aborts the incomplete transaction, so that later changes take effect."""
    controller = LoggedController(tmp_path)
    change(controller, group_config(-1))
    segment = tmp_path / FOLDER_NAME / f"{0:020}.log"
    size = segment.stat().st_size
    change(controller, *(group_config(number) for number in range(25_000)))
    controller.close()
    data = segment.read_bytes()
    for _ in range(kept):
        size += 12 + int.from_bytes(data[size + 8 : size + 12], "big")
    segment.write_bytes(data[: size + 1000])
    again = LoggedController(tmp_path, is_clean=False)
    assert len(groups(again)) == 1
    change(again, group_config(-2))
    again.close()
    assert len(groups_after_start(tmp_path)) == 2
    names = [record.name for batch in batches(tmp_path) for record in batch.records]
    assert names.count(ABORT) == 1


def test_a_large_change_that_finds_no_space_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches written before the failure take no effect, neither at once nor after a restart."""
    controller = LoggedController(tmp_path)
    append, calls = controller.log.append, 0

    def second_fails(batch: bytes, *, frees_space: bool = False) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR, "no space")
        append(batch, frees_space=frees_space)

    with monkeypatch.context() as patch:
        patch.setattr(controller.log, "append", second_fails)
        with pytest.raises(KafkaError, match="no space"):
            change(controller, *(group_config(number) for number in range(25_000)))
    assert (calls, groups(controller)) == (3, [])
    change(controller, group_config(-1))
    controller.close()
    assert len(groups_after_start(tmp_path)) == 1


def append_raw(controller: LoggedController, *records: MetadataRecord) -> None:
    """Append a batch of records to the log without a change of the controller."""
    controller.log.append(build_records(records, 0, controller.epoch, 1))


def begin(name: str = "t") -> MetadataRecord:
    return metadata_record(BEGIN, {"Name": name})


@pytest.mark.parametrize(
    ("change_batches", "expected"),
    [
        ([[begin()], [group_config(1)], [metadata_record(END, {})]], 1),
        ([[begin(), group_config(1), metadata_record(END, {})], [group_config(2)]], 2),
        ([[begin()], [group_config(1)], [metadata_record(ABORT, {"Reason": "r"}), group_config(2)]], 1),
        ([[begin(), group_config(1)], [metadata_record(ABORT, {"Reason": None})], [begin(), group_config(2)]], 0),
        ([[begin(), group_config(1)], [group_config(2)]], 0),
        ([[group_config(1)], [begin(), group_config(1, None)], [group_config(2)]], 1),
    ],
)
def test_transactions_of_records(tmp_path: Path, change_batches: list[list[MetadataRecord]], expected: int) -> None:
    """Complete transactions take effect; aborted and open transactions do not."""
    controller = LoggedController(tmp_path)
    for records in change_batches:
        append_raw(controller, *records)
    controller.close()
    assert len(groups_after_start(tmp_path)) == expected
    assert groups_of_files(tmp_path) == expected


def groups_of_files(folder: Path) -> int:
    loaded = LoadedMetadata(LogFiles(folder), is_salvage=True)
    assert loaded.error is None
    return sum(kind == ConfigResourceType.GROUP for kind, _ in loaded.image.configs)


class FailingDisk:
    """Disk that can be full. ``calls``: names of the system calls, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.calls: list[str] = []
        open_ = Path.open
        for name in ("fsync",):
            patch.setattr(os, name, self._counted(name, getattr(os, name)))

        def open_file(path: Path, mode: str = "r", *args: object, **kwargs: object) -> object:
            if self.is_full and "w" in mode:
                raise OSError(errno.ENOSPC, "No space left on device")
            return open_(path, mode, *args, **kwargs)  # type: ignore[call-overload]

        patch.setattr(Path, "open", open_file)

    def _counted(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            self.calls.append(name)
            return function(*args)

        return call


def test_space_is_kept_for_changes_that_free_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk refuses other changes while the reserve exists; changes that free space may use the reserve."""
    controller = LoggedController(tmp_path)
    change(controller, group_config(1))
    reserve = tmp_path / RESERVE_NAME
    assert reserve.stat().st_size == RESERVE_BYTES
    disk = FailingDisk(monkeypatch)
    disk.is_full = True
    log = controller.log._log
    log._inject_fault(write_errno=errno.ENOSPC)
    with pytest.raises(KafkaError, match="Cannot write the metadata log: The log cannot be written"):
        change(controller, group_config(2))
    assert reserve.exists()
    assert disk.calls == ["fsync"], "the truncation of the refused batch is synced"

    truncate = os.truncate

    def free(path: Path, size_bytes: int) -> None:
        truncate(path, size_bytes)
        log._inject_fault()  # the reserve freed space

    monkeypatch.setattr(os, "truncate", free)
    controller.change(lambda image: [group_config(1, None)], frees_space=True)
    assert reserve.stat().st_size == START_BYTES
    assert len(groups(controller)) == 0
    with pytest.raises(KafkaError, match=r"no space can be kept for a full disk: .*No space left on device"):
        change(controller, group_config(3))
    controller.change(lambda image: [group_config(4)], frees_space=True)
    disk.is_full = False
    change(controller, group_config(3))
    assert reserve.stat().st_size == RESERVE_BYTES
    assert len(groups(controller)) == 2
    controller.close()
    assert len(groups_after_start(tmp_path)) == 2


def test_a_refused_change_is_cut_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused batch is truncated. If that fails, the outcome of the change is unknown and the controller fails."""
    controller = LoggedController(tmp_path)
    change(controller, group_config(1))
    segment = tmp_path / FOLDER_NAME / f"{0:020}.log"
    size = segment.stat().st_size
    log = controller.log._log
    log._inject_fault(write_errno=errno.EIO)
    with pytest.raises(KafkaError):
        change(controller, group_config(2))
    assert segment.stat().st_size == size
    log._inject_fault()
    with segment.open("ab") as file:  # as if the truncation had failed
        file.write(b"the rest of a batch")
    log._inject_fault(write_errno=errno.EIO)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OutcomeUnknownError, match="it is unknown whether the last change is stored"):
            change(controller, group_config(3))
    assert segment.stat().st_size == size
    log._inject_fault()
    with pytest.raises(OutcomeUnknownError):
        change(controller, group_config(4))
    controller.close()
    assert len(groups_after_start(tmp_path, is_clean=False)) == 1


def test_a_start_on_a_full_disk_uses_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reserve frees the space for quorum-state and for the first record of the new epoch."""
    controller = LoggedController(tmp_path)
    change(controller, group_config(1))
    controller.close()
    disk = FailingDisk(monkeypatch)
    disk.is_full = True
    truncate = os.truncate

    def free(path: Path, size_bytes: int) -> None:
        truncate(path, size_bytes)
        disk.is_full = False

    monkeypatch.setattr(os, "truncate", free)
    assert len(groups_after_start(tmp_path)) == 1
    assert (tmp_path / RESERVE_NAME).stat().st_size == 0


def test_a_failed_sync_ends_the_controller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The outcome of a change whose sync failed is unknown, and the controller refuses later changes."""
    reasons: list[str] = []
    controller = LoggedController(tmp_path)
    controller.on_failure = reasons.append
    change(controller, group_config(1))
    controller.log._log._inject_fault(sync_errno=errno.EIO)
    with caplog.at_level(logging.CRITICAL), pytest.raises(OutcomeUnknownError):
        change(controller, group_config(2))
    assert len(groups(controller)) == 1, "the change takes no effect"
    controller.log._log._inject_fault()
    with pytest.raises(OutcomeUnknownError):
        change(controller, group_config(3))
    assert len(reasons) == 1
    assert "the metadata log cannot be synced" in reasons[0]
    controller.log.close()
    assert groups_after_start(tmp_path, is_clean=False) in (["1"], ["1", "2"])


@pytest.mark.parametrize("error", [ZeroDivisionError(), MemoryError(), KeyboardInterrupt()])
def test_a_large_change_whose_later_part_fails_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Any exception aborts the transaction, so that the transaction does not include later changes."""
    controller = LoggedController(tmp_path)
    append, calls = controller.log.append, 0

    def fails(batch: bytes, **options: bool) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error
        append(batch, **options)

    monkeypatch.setattr(controller.log, "append", fails)
    with pytest.raises(type(error)):
        controller.storage.append([group_config(number) for number in range(2500)], controller.image.level)
    change(controller, group_config(-1))
    controller.close()
    assert len(groups_after_start(tmp_path)) == 1
    names = [record.name for batch in batches(tmp_path) for record in batch.records]
    assert (names.count(BEGIN), names.count(ABORT)) == (2, 1)


def test_an_abort_that_cannot_be_written_ends_the_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later changes would be a part of the open transaction, so none is made; the next start aborts it."""
    controller = LoggedController(tmp_path)
    change(controller, group_config(-1))
    append, calls = controller.log.append, 0

    def fails(batch: bytes, **options: bool) -> None:
        nonlocal calls
        calls += 1
        if calls >= 2:
            raise KafkaError(Errors.KAFKA_STORAGE_ERROR, "no space")
        append(batch, **options)

    with monkeypatch.context() as patch:
        patch.setattr(controller.log, "append", fails)
        text = "cannot abort a change of which a part is written: KAFKA_STORAGE_ERROR: no space"
        with pytest.raises(OutcomeUnknownError, match=text):
            change(controller, *(group_config(number) for number in range(25_000)))
    with pytest.raises(OutcomeUnknownError):
        change(controller, group_config(-2))
    controller.close()
    assert groups_after_start(tmp_path, is_clean=False) == ["-1"]
    names = [record.name for batch in batches(tmp_path) for record in batch.records]
    assert (names.count(BEGIN), names.count(ABORT)) == (2, 1)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "it has no level of metadata.version"),
        (
            [metadata_record("UnfenceBrokerRecord", {"Id": 9, "Epoch": 1})],
            "UnfenceBrokerRecord: expected a registered broker, found broker id 9",
        ),
        (None, "batch length 0 is below a header's 49"),
    ],
)
def test_first_records_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: list[MetadataRecord] | None, reason: str
) -> None:
    """The start names the file and the command that recovers the metadata, and writes nothing."""
    voter = standalone_voter(1, DEFAULT_VOTER)
    format_folders([tmp_path], tmp_path, cluster_id="c", node_id=1, now_ms=1, voters=[voter])
    path = tmp_path / "bootstrap.checkpoint"
    if records is None:
        path.write_bytes(bytes(70))
    else:
        write_bootstrap(tmp_path, records, 1)
    with pytest.raises(MetadataLogError) as refused:
        start_metadata(tmp_path, directory_id=voter.directory_id)
    assert str(refused.value) == (
        f"{path} cannot be used: {reason}; rebuild it with 'kbroker log recover-metadata {tmp_path}', or restore it "
        "from a backup"
    )
    assert not (tmp_path / FOLDER_NAME / "quorum-state").exists()


def test_a_part_of_a_refused_batch_is_cut_off_later(tmp_path: Path) -> None:
    """Bytes that could not be cut off at once are cut off with the next refusal, and the log continues."""
    controller = LoggedController(tmp_path)
    change(controller, group_config(1))
    segment = tmp_path / FOLDER_NAME / f"{0:020}.log"
    size = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"the rest of a batch")
    log = controller.log._log
    log._inject_fault(write_errno=errno.ENOSPC)
    with pytest.raises(KafkaError, match="The log cannot be written"):
        change(controller, group_config(2))
    assert segment.stat().st_size == size
    log._inject_fault()
    change(controller, group_config(3))
    controller.close()
    assert groups_after_start(tmp_path) == ["1", "3"]
