"""Groups of all kinds: the list with their lag, and one group with its offsets, members and last ten minutes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.client.cluster import Cluster
from kbroker.client.group_lag import lags_of, partition_lags, total_lag
from kbroker.client.groups import STREAMS, GroupDescription, GroupMember, Groups, ListedGroup
from kbroker.common.errors import Errors
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.common.topic_names import TopicPartition
from kbroker.console.denied import instead
from kbroker.console.lag_history import Shown
from kbroker.console.line_chart import chart_of
from kbroker.console.paging import part_of
from kbroker.console.requests import PageError, Query
from kbroker.console.site import Site, View, address, short_enough

PARTITIONS = 200  # maximum number of partitions on a page
MEMBERS = 200
NAMES = 20  # maximum number of partitions of a member that are named
ASSIGNMENT_BYTES = 1 << 18  # maximum size of a member's assignment that is decoded
LONGEST_TOPIC = 249  # characters; an assignment, chosen by a client, may have longer names


class GroupRow(NamedTuple):
    """A group in the list. ``href``: empty if the id is too long for an address; ``lag``: sum over the partitions with
    a committed offset, None if unknown; ``partitions``: None if they cannot be read.
    """

    group_id: str
    href: str
    kind: str
    state: str
    partitions: int | None
    lag: int | None


class MemberRow(NamedTuple):
    """One member; ``instance_id``: its process in a streams group; ``places``: its assignment as text; ``href`` of the
    removal, empty if the id is too long for an address.
    """

    member_id: str
    instance_id: str
    client_id: str
    host: str
    places: str


def groups(site: Site, query: Query) -> View:
    """Return a page of the groups whose ids contain ``q``, optionally in one state or of one type."""
    wanted, state, kind = query.text("q").strip(), query.text("state"), query.text("type")
    found = site.remember("groups", lambda: _listed(Groups(site.cluster)))
    kept = [
        group
        for group in found
        if wanted.lower() in group.group_id.lower()
        and (not state or group.state == state)
        and (not kind or group.group_type == kind)
    ]
    part = part_of(kept, query, "groups")
    rows = _rows(site.cluster, part.rows)
    values = {
        "part": part,
        "rows": rows,
        "q": wanted,
        "state": state,
        "states": sorted({group.state for group in found}),
        "type": kind,
        "types": sorted({group.group_type for group in found}),
    }
    return View("Groups", "groups.html", values)


def _listed(client: Groups) -> list[ListedGroup]:
    busy = PageError(503, "The broker still loads its groups. Try again in a moment.")
    with instead(busy, Errors.COORDINATOR_LOAD_IN_PROGRESS):
        return client.list_groups()


def _rows(cluster: Cluster, listed: Sequence[ListedGroup]) -> list[GroupRow]:
    lags = lags_of(Groups(cluster), {group.group_id: group.group_type for group in listed})
    rows = []
    for group in listed:
        places = lags.get(group.group_id)
        is_usual = group.protocol_type in ("", "consumer", group.group_type)
        rows.append(
            GroupRow(
                group.group_id,
                short_enough(address("group", group=group.group_id)),
                group.group_type if is_usual else f"{group.group_type}, {group.protocol_type}",
                group.state,
                None if places is None else len(places),
                None if places is None else total_lag(places),
            )
        )
    return rows


# ---------------------------------------------------------------- one group


def group(site: Site, query: Query) -> View:
    """Return one group: its members, the offsets of each partition, and its lag over ten minutes."""
    described = described_group(site, query.needed("group"))
    with site.needs(Operation.DESCRIBE, ResourceType.GROUP, described.group_id):
        places = partition_lags(Groups(site.cluster), described.group_id, described.group_type)
    lag = total_lag(places)
    places.sort(key=lambda place: (-(place.lag or 0), place.topic, place.partition))
    part = part_of(places, query, "group", PARTITIONS)
    shown = Shown(site.identity, described.group_id, described.group_type)
    values = {
        "group": described,
        "lag": lag,
        "part": part,
        "most": max((place.lag or 0 for place in places), default=0),
        "members": [_member(described, one) for one in described.members[:MEMBERS]],
        "more_members": max(0, len(described.members) - MEMBERS),
        "chart": chart_of(site.lags.use(shown, lag)),
    }
    return View("Group", "group.html", values)


def described_group(site: Site, group_id: str) -> GroupDescription:
    """Return a group. Raises: PageError 404 if it does not exist, 403 with the missing ACL."""
    text = f"Group {group_id[:LONGEST_TOPIC]!r} does not exist; it may have been deleted."
    needed = site.needs(Operation.DESCRIBE, ResourceType.GROUP, group_id)
    with needed, instead(PageError(404, text, address("groups")), Errors.GROUP_ID_NOT_FOUND):
        return Groups(site.cluster, assignment_bytes=ASSIGNMENT_BYTES).describe(group_id)


def measured_lag(cluster: Cluster, shown: Shown) -> int | None:
    """Return the lag of a group now, for its history; None if it is unknown."""
    return total_lag(partition_lags(Groups(cluster), shown.group_id, shown.group_type))


def _member(described: GroupDescription, member: GroupMember) -> MemberRow:
    if member.unread_bytes:
        places = f"{member.unread_bytes:,} bytes, too many to be shown"
    elif described.group_type == STREAMS and member.tasks is not None:
        tasks = member.tasks
        roles = (("active", tasks.active), ("standby", tasks.standby), ("warm-up", tasks.warmup))
        places = _named([(f"{role} tasks of {part}", index) for role, some in roles for part, index in some])
    else:
        places = _named(member.assignment)
    instance = member.process if described.group_type == STREAMS else member.instance_id
    return MemberRow(member.member_id, instance or "", member.client_id, member.host, places)


def _named(places: Sequence[TopicPartition]) -> str:
    """Return some partitions by topic, and the number of the others."""
    by_topic: dict[str, list[str]] = {}
    for topic, index in places[:NAMES]:
        by_topic.setdefault(topic[:LONGEST_TOPIC], []).append(str(index))
    words = [f"{topic}: {', '.join(indexes)}" for topic, indexes in by_topic.items()]
    more = f" and {len(places) - NAMES:,} more" if len(places) > NAMES else ""
    return "; ".join(words) + more
