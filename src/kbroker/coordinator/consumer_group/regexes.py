"""Regular expressions of members, and the topics that match them.

Matching is slow, so it is done by another thread and without the group's lock, not in a member's heartbeat; the topics
that match reach the members with their next heartbeats.
Source: ``GroupMetadataManager.maybeUpdateRegularExpressions``, ``TopicRegexResolver``; KIP-848, KIP-1138.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.loggers import get_logger
from kbroker.coordinator.consumer_group import records
from kbroker.coordinator.consumer_group.background import BackgroundTasks
from kbroker.coordinator.consumer_group.group import ConsumerGroup
from kbroker.coordinator.consumer_group.member import ConsumerGroupMember
from kbroker.coordinator.consumer_group.records import RECORDS, ResolvedRegex
from kbroker.coordinator.consumer_group.settings import ConsumerGroupSettings
from kbroker.coordinator.modern_group import timers
from kbroker.coordinator.modern_group.membership import ModernMembership
from kbroker.coordinator.modern_group.records import GroupEpoch, GroupRecord, tombstone
from kbroker.coordinator.modern_group.topics_image import TopicsImage

if TYPE_CHECKING:  # loaded with the first expression
    from kbroker.common.java.linear_pattern import LinearPattern

logger = get_logger(__name__)

LEAST_INTERVAL_MS = 10_000  # minimum interval between two matches of a group's expressions
SOON_MS = 1
MOST_SHOWN = 200  # limit of the characters of an expression that an error shows
MOST_EXPRESSIONS = 500  # limit of different expressions in a group
MOST_STEPS = 20_000_000  # limit of one match of all expressions of a group: a few seconds
SLICE_STEPS, SLICE_NAMES = 200_000, 10_000  # limits of one turn of a group: some 30 ms

#: Returns the topics, among the given ones, that a client may describe.
Visible = Callable[[Iterable[str]], Collection[str]]


class RegexStatus(enum.Enum):
    """Effect of a heartbeat on its member's regular expression."""

    UNCHANGED = 0
    UPDATED = 1  # the topics of the new expression are not resolved yet
    UPDATED_AND_RESOLVED = 2


class Regexes:
    """Up-to-date topics of regular expressions. Callers hold the group's lock.

    ``background`` runs the matching, without the group's lock.
    """

    def __init__(self, membership: ModernMembership[ConsumerGroup, ConsumerGroupSettings]) -> None:
        self._membership = membership
        self._clock = membership.clock
        self._image = membership.image
        self.background = BackgroundTasks()

    def update(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        changes: list[GroupRecord],
    ) -> RegexStatus:
        """Return the effect of a change of a member's expression; add records to ``changes``. Raises: KafkaError."""
        old, new = member.topic_regex, updated.topic_regex
        if old == new:
            return RegexStatus.UNCHANGED
        if old and group.regex_subscribers.get(old) == 1:
            changes.append(tombstone(records.REGULAR_EXPRESSION, group.group_id, old))
        if not new:
            return RegexStatus.UPDATED_AND_RESOLVED if old else RegexStatus.UPDATED
        if group.regex_subscribers.get(new, 0):
            return RegexStatus.UPDATED_AND_RESOLVED if new in group.resolved else RegexStatus.UPDATED
        if len(group.regex_subscribers) >= MOST_EXPRESSIONS:
            text = f"Group {group.group_id} has {MOST_EXPRESSIONS} different regular expressions, the maximum."
            raise KafkaError(Errors.INVALID_REGULAR_EXPRESSION, text)
        compile_regex(new)
        return RegexStatus.UPDATED

    def after_heartbeat(self, group: ConsumerGroup, visible: Visible | None = None) -> None:
        """Match a group's expressions if that is due: an expression or a topic is new, or the last match is old.

        Args: ``visible``: selects the topics that the client of the heartbeat may describe; the whole group
        gets these topics.
        """
        wanted = group.regex_subscribers
        if not wanted or group.is_resolving:
            return
        last = next(iter(group.resolved.values()), None)
        if last is not None:
            age_ms = self._clock.wall_ms() - last.timestamp_ms  # negative: the clock was set back
            if 0 <= age_ms <= LEAST_INTERVAL_MS:
                return
            is_complete = all(regex in group.resolved for regex in wanted)
            is_recent = 0 <= age_ms <= self._membership.settings.regex_refresh_interval_ms
            if is_complete and is_recent and last.version >= self._image.creation_version:
                return
        group.is_resolving = True
        self._membership.timers.set(group, timers.REGEX, "", SOON_MS, lambda: self._begin(group, visible))

    def _begin(self, group: ConsumerGroup, visible: Visible | None) -> None:
        try:
            self.background.run(self._resolve(group, visible))
        except RuntimeError as error:  # the next heartbeat tries again
            group.is_resolving = False
            logger.error("group %s: regular expressions cannot be matched now: %s", group.group_id, error)

    def _resolve(self, group: ConsumerGroup, visible: Visible | None) -> Iterator[None]:
        """Match the expressions of a group, slice by slice, and write the topics that match now."""
        with group.lock:  # its members may have left while it waited for its turn
            wanted = [] if group.is_dead else list(group.regex_subscribers)
        found: dict[str, ResolvedRegex] = {}
        try:
            found = yield from resolve(wanted, self._image, self._clock.wall_ms(), visible)
        except Exception:
            logger.exception("group %s: regular expressions cannot be matched now", group.group_id)
        with group.lock:
            group.is_resolving = False
            if not group.is_dead:
                try:
                    self._take(group, found)
                except KafkaError as error:  # the log is not writable now: the next heartbeat tries again
                    text = "group %s: cannot store the topics of regular expressions: %s"
                    logger.warning(text, group.group_id, error)

    def _take(self, group: ConsumerGroup, found: dict[str, ResolvedRegex]) -> None:
        changes: list[GroupRecord] = []
        subscribers = group.subscribers.copy()
        bumps = False
        for regex, resolved in found.items():
            if regex not in group.regex_subscribers:  # its last member left meanwhile
                continue
            old = group.resolved.get(regex)
            if (frozenset() if old is None else old.topics) != resolved.topics:
                bumps = True
                subscribers.change_regex(old, resolved)
            changes.append(records.regex_record(group.group_id, regex, resolved))
        for regex in group.resolved.keys() - group.regex_subscribers.keys():  # its last member was replaced
            changes.append(tombstone(records.REGULAR_EXPRESSION, group.group_id, regex))
            subscribers.change_regex(group.resolved[regex], None)
        value = self._membership.hashes.group_hash(subscribers.topics)
        if changes and (bumps or value != group.metadata_hash):
            changes.append(RECORDS.epoch(group.group_id, GroupEpoch(group.epoch + 1, value)))
            self._membership.rebalances.record()
            logger.info("group %s: epoch %d: other topics match", group.group_id, group.epoch + 1)
        self._membership.write(group, changes)


def compile_regex(regex: str, most_steps: int | None = None) -> LinearPattern:
    """Compile an expression. Raises: KafkaError INVALID_REGULAR_EXPRESSION."""
    from kbroker.common.java.linear_pattern import MAX_STEPS, LinearPattern, PatternError

    try:
        return LinearPattern(regex, MAX_STEPS if most_steps is None else most_steps)
    except PatternError as error:
        shown = regex if len(regex) <= MOST_SHOWN else f"{regex[:MOST_SHOWN]}..."
        text = f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {error}."
        raise KafkaError(Errors.INVALID_REGULAR_EXPRESSION, text) from error


def resolve(
    regexes: Sequence[str], image: TopicsImage, now_ms: int, visible: Visible | None = None
) -> Generator[None, None, dict[str, ResolvedRegex]]:
    """Match expressions slice by slice; return the ``visible`` topics of each, none if it cannot be matched.

    The remaining steps are divided among the remaining expressions, so that no expression uses up the steps of another.
    """
    from kbroker.common.java.linear_pattern import MAX_STEPS, PatternError

    version = image.version
    found: dict[str, ResolvedRegex] = {}
    left = MOST_STEPS
    for number, regex in enumerate(regexes):
        topics: frozenset[str] = frozenset()
        try:
            pattern = compile_regex(regex, min(MAX_STEPS, left // (len(regexes) - number)))
            matching = []
            slice_ends = SLICE_STEPS
            try:
                for count, name in enumerate(image.names(), 1):
                    if pattern.matches(name):
                        matching.append(name)
                    if pattern.steps >= slice_ends or count % SLICE_NAMES == 0:
                        slice_ends = pattern.steps + SLICE_STEPS
                        yield
            finally:
                left -= pattern.steps
            topics = frozenset(matching if visible is None else visible(matching))
        except (KafkaError, PatternError) as error:
            logger.error("the regular expression %r cannot be matched: %s", regex[:MOST_SHOWN], error)
        found[regex] = ResolvedRegex(topics, version, now_ms)
        yield
    return found
