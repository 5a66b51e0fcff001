"""A deleted topic leaves no folder after a kill at any moment, and other topics remain."""

import errno
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.configs.config import BrokerConfig
from kbroker.common.errors import Errors, KafkaError
from kbroker.log import checkpoints
from kbroker.log.deletion_note import BLOCK_BYTES, IDS_IN_BLOCK, DeletionNote
from kbroker.log.folder_scan import TopicLogs
from kbroker.log.manager import LogManager
from kbroker.metadata.log.log_storage import LogStorage
from kbroker.metadata.log.metadata_log import FOLDER_NAME
from kbroker.metadata.topic_removal import REMOVED_AT_ONCE
from kbroker.metadata.topic_rules import NewTopic
from kbroker.metadata.topics import TopicRegistry
from kbroker.testing.waiting import wait_until
from tests.support.errors import raising
from tests.support.log_files import NOW_MS, batch
from tests.support.log_manager import kill
from tests.support.metadata import LoggedController, following, together


class Killed(BaseException):
    """Simulated end of the process."""


class Broker:
    """Logs and metadata of a broker on one folder, which can be killed and restarted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        config = BrokerConfig({})
        self.logs = LogManager([self.folder], VirtualClock(NOW_MS), config)
        self.controller = LoggedController(self.folder)
        self.topics = TopicRegistry(config, self.controller, self.logs, lambda views: None, VirtualClock(NOW_MS))
        following(self.controller, self.topics)
        self.report = None
        start = self.logs.start

        def remember(topics: list[TopicLogs]) -> None:
            self.report = start(topics, run_threads=False)

        self.logs.start = remember  # type: ignore[assignment]
        self.topics.load()

    def kill(self) -> None:
        kill(self.logs)
        self.controller.close()

    def restart(self) -> None:
        self.kill()
        self.start()

    def folders(self) -> list[str]:
        """Return the names of the folders except that of the metadata log."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir() and path.name != FOLDER_NAME)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    for name in ("doomed", "kept"):
        broker.topics.create(NewTopic(name, 2))
        assert broker.topics.partition(name, 0).append(batch(b"value")).error == 0
    yield broker
    broker.logs.close()
    broker.controller.close()


def killed_in(monkeypatch: pytest.MonkeyPatch, target: LogManager | LogStorage, name: str) -> None:
    monkeypatch.setattr(target, name, raising(Killed))


def test_killed_between_deleting_and_renaming(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start removes the folders of a topic that only the metadata has deleted."""
    with monkeypatch.context() as patch:
        killed_in(patch, broker.logs, "delete_topics")
        with pytest.raises(Killed):
            broker.topics.delete("doomed")
    broker.restart()
    assert broker.folders() == ["kept-0", "kept-1"]
    assert {path.name for path in broker.report.removed_folders} == {"doomed-0", "doomed-1"}
    assert broker.report.unknown_folders == []
    assert broker.topics.partition("kept", 0).log_end_offset == 1
    broker.topics.create(NewTopic("doomed", 2))
    assert broker.folders() == ["doomed-0", "doomed-1", "kept-0", "kept-1"], "a folder was put aside"


def test_killed_between_runs(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start removes the folders of a large topic that the interrupted deletion had not reached."""
    broker.topics.create(NewTopic("wide", REMOVED_AT_ONCE + 1))
    delete = broker.logs.delete_topics

    def delete_once(topics: Mapping[str, Iterable[int]], topic_ids: Iterable[uuid.UUID], is_last: bool) -> None:
        if is_last:
            raise Killed
        delete(topics, topic_ids, is_last)

    with monkeypatch.context() as patch:
        patch.setattr(broker.logs, "delete_topics", delete_once)
        with pytest.raises(Killed):
            broker.topics.delete("wide")
    assert f"wide-{REMOVED_AT_ONCE}" in broker.folders()
    broker.restart()
    assert broker.folders() == ["doomed-0", "doomed-1", "kept-0", "kept-1"]
    assert broker.report.unknown_folders == []


def test_killed_before_deleting(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic in the deletion note that the metadata keeps has all its records, and the start clears the note."""
    with monkeypatch.context() as patch:
        killed_in(patch, broker.controller.storage, "append")
        with pytest.raises(Killed):
            broker.topics.delete("doomed")
    note = DeletionNote(broker.folder)
    assert len(note.read()) == 1
    broker.restart()
    assert broker.folders() == ["doomed-0", "doomed-1", "kept-0", "kept-1"]
    assert broker.topics.partition("doomed", 0).log_end_offset == 1
    assert note.read() == frozenset()


def test_a_topic_that_could_not_be_deleted_is_not_noted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note has no topic whose deletion failed: its folders must remain even if the metadata is lost."""
    full = raising(KafkaError(Errors.KAFKA_STORAGE_ERROR, "the disk is full"))
    with monkeypatch.context() as patch:
        patch.setattr(broker.controller.storage, "append", full)
        with pytest.raises(KafkaError, match="the disk is full"):
            broker.topics.delete("doomed")
    assert DeletionNote(broker.folder).read() == frozenset()


def test_deletions_that_are_stored_together(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note has both topics while folders or committed offsets of each may be left."""
    noted: list[int] = []
    delete = broker.logs.delete_topics

    def look(topics: Mapping[str, Iterable[int]], topic_ids: Iterable[uuid.UUID], is_last: bool) -> None:
        noted.append(len(DeletionNote(broker.folder).read()))
        delete(topics, topic_ids, is_last)

    monkeypatch.setattr(broker.logs, "delete_topics", look)
    together(broker.controller, lambda: broker.topics.delete("doomed"), lambda: broker.topics.delete("kept"))
    assert noted in ([2, 2], [2, 1])  # the first may be forgotten before the second is removed
    assert DeletionNote(broker.folder).read() == frozenset()


def test_killed_between_renaming_and_removing(broker: Broker) -> None:
    """The next start removes folders that were renamed for deletion."""
    broker.topics.delete("doomed")
    assert DeletionNote(broker.folder).read() == frozenset(), "the note still has the topic"
    assert sum(name.endswith("-delete") for name in broker.folders()) == 2
    broker.restart()
    assert broker.folders() == ["kept-0", "kept-1"]


def test_folders_that_were_not_deleted_stay(broker: Broker, tmp_path: Path) -> None:
    """Folders with an unknown, missing or damaged topic id remain and are reported, in spite of the note."""
    for name, text in (("other-0", f"version: 0\ntopic_id: {checkpoints.uuid_to_text(uuid.uuid4())}"), ("bare-0", ""),
                       ("damaged-0", "nonsense")):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "partition.metadata").write_text(text)
    broker.topics.delete("doomed")
    broker.restart()
    assert broker.folders() == ["bare-0", "damaged-0", "kept-0", "kept-1", "other-0"]
    assert [path.name for path in broker.report.unknown_folders] == ["bare-0", "damaged-0", "other-0"]


def test_a_folder_that_cannot_be_renamed_goes_with_a_later_start(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note keeps the topic while other topics are deleted."""
    with monkeypatch.context() as patch:
        patch.setattr(type(broker.logs._dirs[0]), "rename_for_delete", raising(OSError(28, "full")))
        broker.topics.delete("doomed")
    broker.topics.create(NewTopic("brief", 1))
    broker.topics.delete("brief")
    assert len(DeletionNote(broker.folder).read()) == 1
    broker.restart()
    assert broker.folders() == ["kept-0", "kept-1"]


def test_an_offline_partition_is_deleted_with_its_topic(broker: Broker, tmp_path: Path) -> None:
    """The folder of a partition whose log could not be opened is deleted with its topic."""
    broker.kill()
    (tmp_path / "doomed-1" / f"{0:020}.log").unlink()
    (tmp_path / "doomed-1" / f"{0:020}.log").mkdir()
    broker.start()
    assert list(broker.report.failures) == [("doomed", 1)]
    broker.topics.delete("doomed")
    assert [name for name in broker.folders() if not name.endswith("-delete")] == ["kept-0", "kept-1"]
    broker.restart()
    assert broker.folders() == ["kept-0", "kept-1"]


@pytest.mark.parametrize("step", ["create", "grow"])
def test_what_cannot_be_made_leaves_no_folder(broker: Broker, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A full disk at the second new partition leaves neither that partition nor the first one."""
    before = broker.folders()
    write = checkpoints.write_partition_metadata

    def full(path: Path, topic_id: uuid.UUID) -> None:
        if path.name.endswith("-3"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, topic_id)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_partition_metadata", full)
        make: Callable[[], object] = {
            "create": lambda: broker.topics.create(NewTopic("new", 4)),
            "grow": lambda: broker.topics.add_partitions("kept", 4),
        }[step]
        with pytest.raises(KafkaError, match="No space left"):
            make()
    broker.logs.scheduler.run_due()
    assert broker.folders() == before
    assert len(broker.topics.get("kept").partitions) == 2
    assert broker.topics.get("new") is None
    broker.restart()
    assert broker.folders() == before


def test_the_note(tmp_path: Path) -> None:
    """The note is a block that is overwritten in place; a damaged or truncated note is empty."""
    note = DeletionNote(tmp_path)
    assert note.read() == frozenset()
    note.prepare()
    assert note.path.stat().st_size == BLOCK_BYTES
    for count in (3, 100, 0, 1, 500, 2):
        ids = frozenset(uuid.uuid4() for _ in range(count))
        note.write(ids)
        assert note.read() == ids
        assert note.path.stat().st_size == BLOCK_BYTES * (1 if count <= IDS_IN_BLOCK else 3)
    data = note.path.read_bytes()
    for at in range(0, 120, 7):
        note.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert note.read() == frozenset()
    note.path.write_bytes(data[: BLOCK_BYTES // 2])
    assert note.read() == frozenset()


def test_note_is_synced_before_the_metadata_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note is synced before a deletion, and not synced when it is cleared."""
    note = DeletionNote(tmp_path)
    note.prepare()
    synced: list[bytes] = []
    monkeypatch.setattr(checkpoints, "sync_descriptor", lambda fd: synced.append(note.path.read_bytes()))
    note.write([uuid.UUID(int=7)])
    assert synced == [note.path.read_bytes()]
    assert note.read() == {uuid.UUID(int=7)}
    note.write([], is_synced=False)
    assert len(synced) == 1


def test_a_deletion_is_noted_while_the_note_of_another_is_removed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later note stays, whichever is written first: the folders of its topic are removed after a kill."""
    first, second = uuid.uuid4(), uuid.uuid4()
    broker.logs.deletions.add([first])
    write, threads = DeletionNote.write, [threading.Thread(target=broker.logs.deletions.add, args=([second],))]

    def write_late(self: DeletionNote, ids: Iterable[uuid.UUID], *, is_synced: bool = True) -> None:
        if second not in ids and threads[0].ident is None:
            threads[0].start()
            wait_until(lambda: broker.logs.deletions._writing.locked() or not threads[0].is_alive())
        write(self, ids, is_synced=is_synced)

    monkeypatch.setattr(DeletionNote, "write", write_late)
    broker.logs.deletions.withdraw([first])
    threads[0].join(10)
    assert DeletionNote(broker.folder).read() == {second}


def test_a_deletion_that_waits_for_a_disk_delays_no_other_change(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics are created while the note of a deletion is being written, which may hang."""
    write, over, deleting = DeletionNote.write, threading.Event(), threading.Event()

    def hang(self: DeletionNote, ids: Iterable[uuid.UUID], *, is_synced: bool = True) -> None:
        deleting.set()
        assert over.wait(30)
        write(self, ids, is_synced=is_synced)

    monkeypatch.setattr(DeletionNote, "write", hang)
    deletion = threading.Thread(target=broker.topics.delete, args=("doomed",))
    deletion.start()
    try:
        assert deleting.wait(30)
        creation = threading.Thread(target=broker.topics.create, args=(NewTopic("new", 1),), daemon=True)
        creation.start()
        creation.join(10)
        assert broker.topics.get("new") is not None
    finally:
        over.set()
        deletion.join(30)
    assert broker.topics.get("doomed") is None


def test_two_deletions_of_one_topic(broker: Broker) -> None:
    """The note keeps the topic while its folders or offsets are left, although the second deletion is refused."""
    notes, topic_id = broker.logs.deletions, uuid.uuid4()
    notes.add([topic_id])
    notes.add([topic_id])
    notes.withdraw([topic_id])
    assert DeletionNote(broker.folder).read() == notes.remembered() == {topic_id}
    notes.finish([topic_id])
    assert DeletionNote(broker.folder).read() == {topic_id}
    notes.forget([topic_id])
    assert DeletionNote(broker.folder).read() == frozenset()


def test_topics_of_which_only_offsets_are_left_do_not_enlarge_the_note(broker: Broker) -> None:
    """The note has the topics with folders, and as many others as its block has room for."""
    notes, topic_ids = broker.logs.deletions, [uuid.uuid4() for _ in range(400)]
    notes.add(topic_ids[:300])
    assert DeletionNote(broker.folder).read() == set(topic_ids[:300])
    notes.finish(topic_ids[:300])
    notes.add(topic_ids[300:])
    noted = DeletionNote(broker.folder).read()
    assert (len(noted), noted.issuperset(topic_ids[300:])) == (IDS_IN_BLOCK, True)
    assert notes.remembered() == set(topic_ids)
