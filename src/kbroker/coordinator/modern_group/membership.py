"""The common part of the membership of the newer kinds of groups: capacity, sessions, and due assignments.

Source: ``GroupMetadataManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from kbroker._core.clock import BaseClock
from kbroker._core.metrics.sensor import Sensor
from kbroker._core.timer.purgatory import Purgatory
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.coordinator.group_sensors import GroupSensors
from kbroker.coordinator.modern_group import timers
from kbroker.coordinator.modern_group.group import ModernGroup
from kbroker.coordinator.modern_group.records import GroupEpoch, GroupRecord
from kbroker.coordinator.modern_group.settings import ModernGroupSettings
from kbroker.coordinator.modern_group.timers import MemberTimers
from kbroker.coordinator.modern_group.topics_image import TopicHashes, TopicsImage

logger = get_logger(__name__)

TOPICS_REFRESH_MS = 3_600_000  # time after which the topics are read again, even if nothing has changed
# Two slow assignments in a row are followed by a pause, whatever the assignment interval: otherwise the cost of a
# flood of joins would grow with the square of their number.
SLOW_ASSIGNMENT_MS, SLOW_PAUSE = 25, 4  # the pause takes that many times as long as the shorter of the two

G = TypeVar("G", bound=ModernGroup)
S = TypeVar("S", bound=ModernGroupSettings)


class GroupParts(NamedTuple):
    """Parts of the coordinator that the groups of each kind use. ``purgatory``: holds the session timers."""

    clock: BaseClock
    purgatory: Purgatory
    image: TopicsImage
    sensors: GroupSensors


class ModernMembership(Generic[G, S]):
    """Changes of the membership of groups of one kind. Base class.

    Args: ``write`` appends records, which the group replays, or raises KafkaError and changes nothing;
    ``rebalances``: counts the new group epochs.
    Threads: any; a group's lock, which the caller holds, guards the whole group.
    """

    def __init__(
        self, parts: GroupParts, write: Callable[[G, Sequence[GroupRecord]], object], settings: S, rebalances: Sensor
    ) -> None:
        self.clock = parts.clock
        self.write = write
        self.image = parts.image
        self.settings = settings
        self.rebalances = rebalances
        self.timers = MemberTimers(parts.purgatory, parts.clock)
        self.hashes = TopicHashes(parts.image)

    def fence(self, group: G, members: Collection[Any], reason: str) -> None:
        """Remove members. Raises: KafkaError; the group is then unchanged."""
        raise NotImplementedError

    def member_tombstones(self, group: G, members: Collection[Any], reason: str) -> list[GroupRecord]:
        """Return the tombstones of members that are removed, and log the reason."""
        for member in members:
            logger.info("group %s: %s is removed: %s", group.group_id, member.member_id, reason)
        return [row for one in members for row in group.RECORDS.member_tombstones(group.group_id, one.member_id)]

    def write_removal(self, group: G, members: Collection[Any], changes: Sequence[GroupRecord]) -> None:
        """Write the records of a removal, and end the time-outs of the members."""
        self.write(group, changes)
        for member in members:
            self.timers.cancel_member(group, member.member_id)

    def check_room(self, group: G, member_id: str) -> None:
        """Refuse a new member of a full group. Raises: KafkaError GROUP_MAX_SIZE_REACHED."""
        if len(group.members) >= self.settings.max_size and member_id not in group.members:
            text = f"The {group.KIND} group has reached its maximum capacity of {self.settings.max_size} members."
            raise KafkaError(Errors.GROUP_MAX_SIZE_REACHED, text)

    def is_refresh_due(self, group: G) -> bool:
        """Return whether the topics must be read again."""
        return (
            self.clock.wall_ms() >= group.refresh_deadline_ms
            or group.epoch < group.refresh_epoch
            or group.refresh_version != self.image.version
        )

    def refreshed_hash(self, group: G, names: Iterable[str]) -> int:
        """Return the hash of topics that are read again because ``is_refresh_due`` or their names have changed."""
        if self.clock.wall_ms() >= group.refresh_deadline_ms:
            self.hashes.forget()
        return self.hashes.group_hash(names)

    def refresh(
        self, group: G, names: Iterable[str], has_subscription_changed: bool, changes: list[GroupRecord]
    ) -> int:
        """Read topics again; return the group epoch, which rises if they or the subscriptions have changed."""
        version, epoch = self.image.version, group.epoch
        value = self.refreshed_hash(group, names)
        if has_subscription_changed or value != group.metadata_hash:
            epoch += 1
            changes.append(group.RECORDS.epoch(group.group_id, GroupEpoch(epoch, value)))
            self.rebalances.record()
            logger.info("group %s: epoch %d", group.group_id, epoch)
        self.note_refresh(group, epoch, version)
        return epoch

    def note_refresh(self, group: G, epoch: int, version: int) -> None:
        """Note that the topics of a version were read for a group epoch."""
        group.refresh_deadline_ms = self.clock.wall_ms() + TOPICS_REFRESH_MS
        group.refresh_epoch, group.refresh_version = epoch, version

    def may_assign(self, group: G) -> bool:
        """Return whether enough time has passed since the latest target assignment."""
        interval_ms = max(self.settings.assignment_interval_ms(group.group_id), group.assignment_pause_ms)
        return group.may_assign(interval_ms, self.clock.wall_ms())

    def note_assignment(self, group: G, began_ms: int) -> None:
        """Note that a target assignment was made, and when that began.

        A pause needs two slow assignments in a row: during a single one the thread may have waited for the processor.
        """
        took_ms = self.clock.now_ms() - began_ms
        slow_ms = min(took_ms, group.assignment_took_ms)
        group.assignment_took_ms = took_ms
        group.assignment_pause_ms = SLOW_PAUSE * slow_ms if slow_ms >= SLOW_ASSIGNMENT_MS else 0

    # ------------------------------------------------------------ time

    def await_heartbeat(self, group: G, member_id: str, timeout_ms: int | None = None) -> None:
        """Restart the session of a member, by default with the group's session timeout."""
        if timeout_ms is None:
            timeout_ms = self.settings.session_timeout_ms(group.group_id)
        self.timers.extend(
            group, timers.SESSION, member_id, timeout_ms, lambda: self.expire(group, member_id, "its session expired")
        )

    def expire_later(self, group: G, kind: str, member_id: str, timeout_ms: int, reason: str, if_absent: bool) -> None:
        """Remove a member after a time-out; ``if_absent`` keeps a time-out of this kind that is running."""
        begin = self.timers.set_if_absent if if_absent else self.timers.set
        begin(group, kind, member_id, timeout_ms, lambda: self.expire(group, member_id, reason))

    def expire(self, group: G, member_id: str, reason: str) -> int | None:
        """Remove a member at the end of a time-out; return the milliseconds until the next attempt, None on success."""
        member = group.members.get(member_id)
        if member is None:
            return None
        try:
            self.fence(group, [member], reason)
        except Exception as error:  # the log is not writable now, or a defect
            logger.warning(
                "group %s: cannot remove %s: %s",
                group.group_id,
                member_id,
                error,
                exc_info=not isinstance(error, KafkaError),
            )
            return self.settings.session_timeout_ms(group.group_id)
        return None

    def watch_reconciliation(self, group: G, before: Any, after: Any) -> None:
        """Start the rebalance time-out of a member that must revoke partitions or tasks; end it once it has."""
        if after == before:
            return
        if after.must_revoke:
            self.await_revocation(group, after)
        else:
            self.timers.cancel(group, timers.REBALANCE, after.member_id)

    def await_revocation(self, group: G, member: Any) -> None:
        """Remove a member unless it revokes its partitions or tasks within its rebalance time-out."""
        member_id, epoch, timeout_ms = member.member_id, member.member_epoch, member.rebalance_timeout_ms

        def expire() -> int | None:
            present = group.members.get(member_id)
            if present is None or present.member_epoch != epoch:
                return None
            return self.expire(group, member_id, f"it revoked nothing of epoch {epoch} within {timeout_ms} ms")

        self.timers.set(group, timers.REBALANCE, member_id, timeout_ms, expire)

    def resume(self, group: G) -> None:
        """Start the time-outs of a loaded group."""
        for member_id, member in group.members.items():
            self.await_heartbeat(group, member_id)
            if member.must_revoke:
                self.await_revocation(group, member)

    def dismiss(self, group: G) -> None:
        """End a group that is no longer served, or was deleted."""
        group.is_dead = True
        self.timers.cancel_all(group)


def other_epoch(kind: str, epoch: int, present: int, more: str = "") -> KafkaError:
    """Return the error for a heartbeat with an epoch other than the current one of the member."""
    text = (
        f"The {kind} group member has a {'greater' if epoch > present else 'smaller'} member epoch ({epoch}) than the "
        f"one known by the group coordinator ({present}){more}. The member must abandon all its partitions and rejoin."
    )
    return KafkaError(Errors.FENCED_MEMBER_EPOCH, text)
