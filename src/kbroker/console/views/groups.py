"""Groups and their lag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.common.errors import Errors, KafkaError, ProtocolError
from kbroker.console.paging import part_of
from kbroker.console.requests import PageError, Query
from kbroker.console.site import ROOT, Site, View, address, short_enough
from kbroker.coordinator.group_coordinator import GroupCoordinator, ListedGroup
from kbroker.coordinator.share.persister import UNINITIALIZED_OFFSET
from kbroker.coordinator.share.share_records import SharePartitionKey
from kbroker.coordinator.share_group.group import ShareGroup
from kbroker.coordinator.share_group.member import ShareGroupMember
from kbroker.coordinator.streams_groups import DescribedStreamsMember
from kbroker.log.checkpoints import uuid_to_text
from kbroker.protocol import codec

PARTITIONS = 200  # of a page
MEMBERS = 200
NAMES = 20  # partitions of a member that are named
ASSIGNMENT_BYTES = 1 << 18  # of a member's assignment that is decoded
LONGEST_TOPIC = 249  # characters; an assignment, chosen by a client, may have longer names


class GroupRow(NamedTuple):
    """A group in the list. ``href``: empty if the id is too long for an address; ``lag``: sum over the partitions with
    a committed offset, None if unknown.
    """

    group_id: str
    href: str
    kind: str
    state: str
    partitions: int
    lag: int | None


class PlaceRow(NamedTuple):
    """One partition of a group. ``offset``: None in a share group that has not begun to read it."""

    topic: str
    partition: int
    offset: int | None
    end: int | None
    lag: int | None
    metadata: str


class MemberRow(NamedTuple):
    """One member; ``instance_id``: its process in a streams group; ``places``: its assignment as text."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    places: str


def groups(site: Site, query: Query) -> View:
    """Return a page of the groups whose ids contain ``q``, optionally in one state."""
    wanted, state = query.text("q").strip(), query.text("state")
    coordinator = site.context.group_coordinator
    found = [] if coordinator is None else _listed(coordinator)
    states = sorted({group.state.value for group in found})
    kept = [
        group
        for group in found
        if wanted.lower() in group.group_id.lower() and (not state or group.state.value == state)
    ]
    kept.sort(key=lambda group: group.group_id)
    part = part_of(kept, query.integer("page", 1, 1, 10**9), f"{ROOT}/groups", query.values)
    rows = [_row(site, coordinator, group) for group in part.rows] if coordinator is not None else []
    return View("Groups", "groups.html", {"part": part, "rows": rows, "q": wanted, "state": state, "states": states})


def _listed(coordinator: GroupCoordinator) -> list[ListedGroup]:
    try:
        return coordinator.list_groups()
    except KafkaError as error:
        if error.error is Errors.COORDINATOR_LOAD_IN_PROGRESS:
            raise PageError(503, "The broker still loads its groups. Try again in a moment.") from None
        raise


def _row(site: Site, coordinator: GroupCoordinator, group: ListedGroup) -> GroupRow:
    places = _places(site, coordinator, group)
    lags = [place.lag for place in places if place.lag is not None]
    is_usual = group.protocol_type in ("", "consumer", group.group_type)
    kind = group.group_type if is_usual else f"{group.group_type}, {group.protocol_type}"
    href = short_enough(address("group", group=group.group_id))
    return GroupRow(group.group_id, href, kind, group.state.value, len(places), sum(lags) if lags else None)


def _places(site: Site, coordinator: GroupCoordinator, group: ListedGroup) -> list[PlaceRow]:
    if group.group_type == ShareGroup.KIND:
        return _shared_places(site, coordinator, group.group_id)
    try:
        committed = coordinator.offsets.fetch(group.group_id).committed
    except KafkaError:  # its partition is being loaded, or it was just deleted
        return []
    rows = []
    for (topic, index), at in sorted(committed.items()):
        log = site.context.topics.partition(topic, index)
        end = None if log is None else log.high_watermark
        lag = None if end is None else max(0, end - at.offset)
        rows.append(PlaceRow(topic, index, at.offset, end, lag, at.metadata or ""))
    return rows


def _shared_places(site: Site, coordinator: GroupCoordinator, group_id: str) -> list[PlaceRow]:
    """Return the initialized partitions of a share group, with their start offsets."""
    context, rows = site.context, []
    try:
        for topic_id, indexes in coordinator.share_groups.initialized(group_id).items():
            view = context.topics.get_by_id(topic_id)
            if view is None:
                continue
            for index in sorted(indexes):
                state = context.share.summary(SharePartitionKey(group_id, topic_id, index))
                log = context.topics.partition(view.name, index)
                end = None if log is None else log.high_watermark
                lag = None if end is None else state.lag(end)
                offset = None if state.start_offset == UNINITIALIZED_OFFSET else state.start_offset
                rows.append(PlaceRow(view.name, index, offset, end, lag, ""))
    except KafkaError:  # a partition is being loaded, or the group was just deleted
        return []
    return sorted(rows, key=lambda row: row[:2])


def group(site: Site, query: Query) -> View:
    """Return one group: its members, and the offsets of each partition."""
    group_id = query.needed("group")
    coordinator = site.context.group_coordinator
    found = [] if coordinator is None else [one for one in _listed(coordinator) if one.group_id == group_id]
    if coordinator is None or not found:
        raise PageError(404, f"Group {group_id[:249]!r} does not exist; it may have been deleted.")
    listed = found[0]
    places = _places(site, coordinator, listed)
    places.sort(key=lambda place: (-(place.lag or 0), place.topic, place.partition))
    part = part_of(places, query.integer("page", 1, 1, 10**9), f"{ROOT}/group", query.values, PARTITIONS)
    members, more_members = _members(site, coordinator, listed)
    values = {
        "group": listed,
        "row": _row(site, coordinator, listed),
        "part": part,
        "most": max((place.lag or 0 for place in places), default=0),
        "members": members,
        "more_members": more_members,
    }
    return View("Group", "group.html", values)


def _members(site: Site, coordinator: GroupCoordinator, listed: ListedGroup) -> tuple[list[MemberRow], int]:
    """Return the members that are shown, and the number of the others."""
    members: Sequence[Any] = ()
    try:
        if listed.group_type == "consumer":
            members = coordinator.consumer_groups.describe(listed.group_id).members
            return [_consumer_member(site, one) for one in members[:MEMBERS]], max(0, len(members) - MEMBERS)
        if listed.group_type == ShareGroup.KIND:
            members = coordinator.share_groups.describe(listed.group_id).members
            return [_share_member(site, one) for one in members[:MEMBERS]], max(0, len(members) - MEMBERS)
        if listed.group_type == "streams":
            members = coordinator.streams_groups.describe(listed.group_id).members
            return [_streams_member(one) for one in members[:MEMBERS]], max(0, len(members) - MEMBERS)
        described = coordinator.describe(listed.group_id)
    except KafkaError:  # just deleted, or now of another type
        return [], 0
    members = () if described is None else described.members
    rows = [
        MemberRow(
            one.member_id, one.group_instance_id or "", one.client_id, one.client_host, _assignment(one.assignment)
        )
        for one in members[:MEMBERS]
    ]
    return rows, max(0, len(members) - MEMBERS)


def _consumer_member(site: Site, one: Any) -> MemberRow:
    member = one.member
    places = _owned(site, one.owned)
    return MemberRow(member.member_id, member.instance_id or "", member.client_id, member.client_host, places)


def _share_member(site: Site, one: ShareGroupMember) -> MemberRow:
    return MemberRow(one.member_id, "", one.client_id, one.client_host, _owned(site, one.assigned))


def _owned(site: Site, owned: Mapping[UUID, frozenset[int]]) -> str:
    places = []
    for topic_id, indexes in owned.items():
        view = site.context.topics.get_by_id(topic_id)
        places.append((uuid_to_text(topic_id) if view is None else view.name, sorted(indexes)))
    return _named(places)


def _streams_member(one: DescribedStreamsMember) -> MemberRow:
    member = one.member
    roles = zip(("active", "standby", "warm-up"), member.assigned.without_epochs, strict=True)
    places = [
        (f"{role} tasks of {part}", sorted(indexes)) for role, tasks in roles for part, indexes in sorted(tasks.items())
    ]
    return MemberRow(member.member_id, member.process_id, member.client_id, member.client_host, _named(places))


def _assignment(data: bytes) -> str:
    """Return the assignment of a member of a classic group; "" if it is not one of consumers."""
    if len(data) < 2:
        return ""
    if len(data) > ASSIGNMENT_BYTES:
        return f"{len(data):,} bytes, too many to be shown"
    try:
        version = min(int.from_bytes(data[:2], "big", signed=True), 3)
        body = codec.decode_versioned("ConsumerProtocolAssignment", data, read_as=version)[1]
    except (ProtocolError, ValueError):
        return "not readable"
    return _named([(row["Topic"], row["Partitions"]) for row in body["AssignedPartitions"]])


def _named(places: Sequence[tuple[str, Sequence[int]]]) -> str:
    total = sum(len(indexes) for _, indexes in places)
    named, words = 0, []
    for topic, indexes in places:
        some = [str(index) for index in indexes[: NAMES - named]]
        named += len(some)
        if some:
            words.append(f"{topic[:LONGEST_TOPIC]}: {', '.join(some)}")
    more = f" and {total - named:,} more" if total > named else ""
    return "; ".join(words) + more
