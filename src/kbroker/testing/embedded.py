"""A broker for tests in this process: in memory, on a free port, few threads; faults, snapshots, virtual time."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker._core.clock import BaseClock, SystemClock, VirtualClock
from kbroker.broker import Broker
from kbroker.common.configs.config import BrokerConfig, check_broker_names, checked_settings
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.similar_names import did_you_mean
from kbroker.coordinator.transaction_service import PartitionMarkers
from kbroker.metadata.topic_rules import NewTopic
from kbroker.protocol.records import Record, iter_records
from kbroker.testing.faults import FaultRules
from kbroker.testing.transactions import HeldMarkers, batches_of, decided_offsets
from kbroker.testing.waiting import wait_until

#: Settings for tests; Kafka's defaults are for data centres.
TEST_DEFAULTS: Mapping[str, object] = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "kbroker.in.memory": True,
    "num.network.threads": 1,
    "num.io.threads": 2,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
MEMORY_FOLDER = Path("/dev/shm")
NOT_COPIED = (".lock",)

B = TypeVar("B", bound="EmbeddedBroker")


class _TemporaryFolder:
    """A folder that is removed with the object, by ``remove``, or at exit; not by child processes made by fork.

    At the exit of such a child, TemporaryDirectory would remove the folder of its parent.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.remove = weakref.finalize(self, _remove_own, path, os.getpid())


def _remove_own(path: Path, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        shutil.rmtree(path, ignore_errors=True)


class Snapshot:
    """The state of a broker at one moment, as a copy of its log folder; made by ``EmbeddedBroker.snapshot``.

    It is in a temporary folder that is removed with the object (or by ``discard``), unless ``folder`` was given.
    """

    def __init__(self, folder: Path, temporary: bool) -> None:
        self.folder = folder
        self._temporary = _TemporaryFolder(folder) if temporary else None

    def discard(self) -> None:
        """Remove the snapshot's temporary folder now; the snapshot can no longer be restored."""
        if self._temporary is not None:
            self._temporary.remove()

    def __repr__(self) -> str:
        return f"Snapshot({str(self.folder)!r})"


class EmbeddedBroker(Broker):
    """A Broker with ``TEST_DEFAULTS``, fault rules and snapshots.

    Args:
        settings: values by Kafka's names; they override the defaults. With ``log.dirs`` the data is kept there.
        clock: source of time; a VirtualClock stops until it is advanced.
        snapshots: keep data in a temporary folder (in /dev/shm where it exists) instead of memory, as snapshots need;
        the folder is removed when the broker stops. defaults: instead of TEST_DEFAULTS.
    Raises: ConfigError for a bad value, and for a setting that looks like a misspelled one.
    Threads: as Broker; ``faults`` from any thread.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        clock: BaseClock | None = None,
        snapshots: bool = False,
        defaults: Mapping[str, object] = TEST_DEFAULTS,
    ) -> None:
        given = checked_settings(settings)
        check_broker_names(given)
        values = {**defaults, **given}
        if "kbroker.in.memory" not in given and ("log.dirs" in given or "log.dir" in given):
            values["kbroker.in.memory"] = False
        self._keeps_nothing = snapshots and BrokerConfig(values).boolean("kbroker.in.memory")
        if self._keeps_nothing:
            values["kbroker.in.memory"] = False
        self._values = values
        self._folder: _TemporaryFolder | None = None
        super().__init__(values, clock=clock)
        self.faults = FaultRules(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError, with an explanation for methods that only a VirtualBroker has."""
            if hasattr(VirtualBroker, name):
                how = "use VirtualBroker(), or broker_factory(virtual_clock=True)"
                raise AttributeError(f"{name} needs a broker with virtual time, this one follows its clock; {how}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ------------------------------------------------------------ life

    def __enter__(self: B) -> B:
        self.start()
        return self

    def start(self) -> None:
        """Start; clients are served when this returns. Raises: BrokerStartError."""
        if self._keeps_nothing and self._folder is None:
            place = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
            try:
                path = tempfile.mkdtemp(prefix="kbroker-", dir=place)
            except OSError:
                path = tempfile.mkdtemp(prefix="kbroker-")
            self._folder = _TemporaryFolder(Path(path))
            self._configure({"log.dirs": path})
        try:
            self._begin()
        except BaseException:
            if self._runtime is None:
                self._remove_folder()
            raise

    def stop(self) -> None:
        """Stop in order; connections that a fault holds are closed, and a temporary folder is removed. Idempotent."""
        self._end()
        if self._starting is None:  # else this is a signal handler during a start, which removes the folder
            self._remove_folder()

    def _remove_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.remove()

    def _begin(self) -> None:
        if self._runtime is None:
            self.faults.begin()
        try:
            super().start()
        except BaseException:
            if self._runtime is None:
                self.faults.end()
            raise

    def _end(self) -> None:
        # not in a forked child: a thread that exists only in its parent may hold the lock of the faults
        if self._runtime is None or self._runtime.pid == os.getpid():
            self.faults.end()
        super().stop()

    def _configure(self, changes: Mapping[str, object]) -> None:
        self.config = BrokerConfig({**self._values, **changes})

    @property
    def is_running(self) -> bool:
        """Return whether the broker has been started and not stopped."""
        return self._runtime is not None

    # ------------------------------------------------------------ topics

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic and return its name; it can be used when this returns.

        Raises: KafkaError as a client would get it, such as TOPIC_ALREADY_EXISTS, INVALID_CONFIG.
        """
        self.context.topics.create(NewTopic(name, partitions, configs=dict(configs or {})))
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records. Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        self.context.topics.delete(name)

    @property
    def topics(self) -> dict[str, int]:
        """Partitions by topic."""
        return {view.name: len(view.partitions) for view in self.context.topics.all()}

    def records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Return the records that the log has now, in order of partition and offset, without control records.

        Args: ``partition``: only this one.
        Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION.
        """
        return [one for log in self._logs(topic, partition) for one in _records_of(log)]

    def committed_records(self, topic: str, partition: int | None = None) -> list[Record]:
        """Return the records that a consumer with ``isolation.level=read_committed`` reads now.

        Args: ``partition``: only this one. Raises: as ``records``.
        """
        found: list[Record] = []
        for log in self._logs(topic, partition):
            records, decided = _records_of(log), decided_offsets(log)
            found += [one for one in records if one.offset in decided]
        return found

    def _logs(self, topic: str, partition: int | None) -> Sequence[Any]:
        view = self.context.topics.get(topic)
        if view is None:
            known = sorted(self.topics)
            hint = did_you_mean(topic, known) or f"; this broker has {', '.join(known[:8]) or 'no topics'}"
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r} does not exist{hint}")
        if partition is not None and not 0 <= partition < len(view.partitions):
            expected = f"expected a partition from 0 to {len(view.partitions) - 1}, got {partition}"
            raise KafkaError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}: {expected}")
        return view.partitions if partition is None else (view.partitions[partition],)

    # ------------------------------------------------------------ transactions

    @property
    def transactions(self) -> dict[str, str]:
        """State of each transactional id, by Kafka's names, such as Empty, Ongoing and PrepareCommit."""
        return {one.transactional_id: one.state.label for one in self.context.transactions.list_transactions()}

    def hold_markers(self, topic: str | None = None) -> HeldMarkers:
        """Write no end markers of transactions from now on, so that those that end stay PrepareCommit or PrepareAbort.

        For clients these transactions have ended; read_committed consumers wait, and so does the next transaction of
        the id.

        Args: ``topic``: only those of this topic (``__consumer_offsets``: those of offsets).
        Returns: an object that releases them, as a restart of the broker does. Only the later of two such objects
        has an effect.
        """
        markers = self.context.markers
        assert isinstance(markers, PartitionMarkers)
        return HeldMarkers(markers, topic)

    # ------------------------------------------------------------ groups of the consumer protocol

    def group_members(self, group: str) -> dict[str, set[tuple[str, int]]]:
        """Return the partitions that each member has or is releasing, by member id.

        Raises: KafkaError GROUP_ID_NOT_FOUND for a group of the classic protocol, or an unknown one.
        """
        names = {view.topic_id: view.name for view in self.context.topics.all()}
        return {
            one.member.member_id: {
                (names[topic_id], index) for topic_id, some in one.owned.items() if topic_id in names for index in some
            }
            for one in self.context.groups.consumer_groups.describe(group).members
        }

    def fence_member(self, group: str, member_id: str) -> None:
        """Remove a member as if its session were over; its next heartbeat gets UNKNOWN_MEMBER_ID.

        Raises: KafkaError GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID.
        """
        self.context.groups.remove_member(group, member_id)

    def rebalance(self, group: str) -> None:
        """Compute the target assignment again: each member moves to the next epoch with its heartbeat.

        Without other changes partitions stay: the assignors move as few as they can.
        Raises: KafkaError GROUP_ID_NOT_FOUND.
        """
        self.context.groups.consumer_groups.bump_epoch(group)

    # ------------------------------------------------------------ state

    def snapshot(self, folder: str | Path | None = None) -> Snapshot:
        """Copy the state: topics with their configs, ids and logs, producers, everything in the log folder.

        A running broker is stopped, copied and started again on the same ports; its clients reconnect on their own.

        Args: ``folder``: destination, which must not exist; None: a temporary folder.
        Raises: RuntimeError when the data is in memory only; FileExistsError; OSError.
        """
        data = self._data_folder()
        temporary = folder is None
        place = Path(tempfile.mkdtemp(prefix="kbroker-snapshot-", dir=data.parent)) if folder is None else Path(folder)
        if not temporary and place.exists():
            raise FileExistsError(f"{place} exists")
        try:
            with self._paused():
                shutil.copytree(data, place, ignore=shutil.ignore_patterns(*NOT_COPIED), dirs_exist_ok=temporary)
        except BaseException:  # a part of a copy would keep a full disk full
            shutil.rmtree(place, ignore_errors=True)
            raise
        return Snapshot(place, temporary)

    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot, possibly of another broker; later changes are lost, faults are kept.

        Raises: RuntimeError when the data is in memory only; FileNotFoundError when it was discarded; OSError, and the
            broker keeps its state if the snapshot cannot be copied.
        """
        data = self._data_folder()
        if not snapshot.folder.is_dir():
            raise FileNotFoundError(f"{snapshot!r} was discarded")
        with tempfile.TemporaryDirectory(prefix="kbroker-restore-", dir=data.parent) as name:
            shutil.copytree(snapshot.folder, name, dirs_exist_ok=True)
            with self._paused():
                for path in data.iterdir():
                    if path.is_dir():
                        shutil.rmtree(path)
                    elif path.name not in NOT_COPIED:
                        path.unlink()
                for path in Path(name).iterdir():
                    shutil.move(path, data)

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Pause a running broker, which starts again on the same ports."""
        was_running = self.is_running
        if was_running:
            pinned = ",".join(self.bound_listeners)
            self._end()
            self._configure({"listeners": pinned, "log.dirs": ",".join(map(str, self.config.log_dirs))})
        try:
            yield
        finally:
            if was_running:
                self._begin()

    def _data_folder(self) -> Path:
        if self.config.boolean("kbroker.in.memory"):
            raise RuntimeError("snapshots need a folder: EmbeddedBroker(snapshots=True), or a setting for log.dirs")
        if self._keeps_nothing and self._folder is None:
            raise RuntimeError("this broker does not run")
        if len(self.config.log_dirs) > 1:
            raise RuntimeError(f"snapshots need one log folder, log.dirs has {len(self.config.log_dirs)}")
        return self.config.log_dir

    # ------------------------------------------------------------ waiting

    @property
    def is_idle(self) -> bool:
        """Return whether every request has its response or waits, and nothing is due by the broker's clock.

        Requests that the network threads have not read yet do not count: wait for their effects.
        """
        return super().is_idle and self.faults.is_idle

    def wait_until_quiet(self, timeout_s: float = 10.0) -> None:
        """Wait until the broker ``is_idle``. Raises: TimeoutError after ``timeout_s`` real seconds."""
        wait_until(lambda: self.is_idle, timeout_s, "a quiet broker")


class VirtualBroker(EmbeddedBroker):
    """An EmbeddedBroker whose clock stops until the test advances it.

    Retention, delayed fetches, idle connections, delays of faults and everything else that waits for time happens in
    ``advance_ms``. Timestamps that the broker sets are of this clock; those of clients are not.

    Args: ``start_epoch_ms``: initial time, None: the system's (a broker rejects records whose timestamps are
    more than message.timestamp.after.max.ms, an hour, ahead of its clock); the others as EmbeddedBroker.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        start_epoch_ms: int | None = None,
        snapshots: bool = False,
        defaults: Mapping[str, object] = TEST_DEFAULTS,
    ) -> None:
        self._virtual_clock = VirtualClock(SystemClock().wall_ms() if start_epoch_ms is None else start_epoch_ms)
        super().__init__(settings, clock=self._virtual_clock, snapshots=snapshots, defaults=defaults)

    def advance_ms(self, delta_ms: int, timeout_s: float = 10.0) -> None:
        """Move the time forward in one step, and return when everything that became due is done.

        A periodic task runs once per step, however long the step is. Connections that became idle are closed, but
        this does not wait until their clients have noticed.

        Raises: ValueError for a negative step; TimeoutError after ``timeout_s`` real seconds.
        """
        self._virtual_clock.advance_ms(delta_ms)
        if self.is_running:
            self.wait_until_quiet(timeout_s)

    @property
    def now_ms(self) -> int:
        """The broker's time, milliseconds since 1970."""
        return self._virtual_clock.wall_ms()

    def wait_for_fetches(self, count: int = 1, timeout_s: float = 10.0) -> None:
        """Wait until at least ``count`` fetches are waiting for records, or for the clock to advance.

        Raises: TimeoutError after ``timeout_s`` real seconds.
        """
        wait_until(
            lambda: self.waiting_fetches >= count,
            timeout_s,
            f"{count} waiting fetch{'es' * (count != 1)}",
        )


def _records_of(log: Any) -> list[Record]:
    start = log.log_start_offset
    batches = batches_of(log, log.log_end_offset)
    return [one for batch in batches for one in iter_records(batch.raw) if one.offset >= start]
