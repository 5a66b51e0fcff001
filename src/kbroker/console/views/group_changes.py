"""Changes of groups: offsets reset, a member removed, a group deleted."""

from __future__ import annotations

from kbroker.client.group_removal import remove_member
from kbroker.client.groups import Groups
from kbroker.client.offset_reset import (
    GroupReset,
    ResetTo,
    datetime_ms,
    parse_offsets,
    plan_group_reset,
    topic_partitions,
)
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.common.units import counted
from kbroker.console.changes import Change, Difference
from kbroker.console.denied import Needed
from kbroker.console.requests import MAX_TEXT, Query
from kbroker.console.site import Site, View, address
from kbroker.console.views.groups import described_group

FROM_FILE = "file"
RULES = {
    ResetTo.EARLIEST.value: "the log start offset",
    ResetTo.LATEST.value: "the end offset",
    ResetTo.TIMESTAMP.value: "the first record at or after a time",
    ResetTo.SHIFT_BY.value: "the current offset, shifted by a number",
    ResetTo.OFFSET.value: "one offset for all",
    FROM_FILE: "the offsets of a file",
}
NUMBERED = (ResetTo.SHIFT_BY, ResetTo.OFFSET)
LONGEST_NUMBER = 20  # characters


def reset_form(site: Site, query: Query) -> View:
    """Return the form to reset the offsets of a group."""
    described = described_group(site, query.needed("group"))
    fields = {"rule": ResetTo.EARLIEST.value, "value": "", "time": "", "topics": "", "rows": "", **query.values}
    values = {"group": described, "rules": RULES, "fields": fields}
    return View("Reset offsets", "group_reset.html", values)


def reset(site: Site, form: Query) -> Change:
    """Return the change that resets a group's offsets; the form that applies it sends the offsets that were shown."""
    group_id = form.needed("group")
    client, needed = Groups(site.cluster), Needed(Operation.READ, ResourceType.GROUP, group_id)
    with site.needs(*needed):
        if form.text("plan"):
            exact = parse_offsets(form.text("plan").splitlines(), [group_id]).get(group_id, {})
            plan = plan_group_reset(client, group_id, {}, ResetTo.CURRENT, exact=exact)
        else:
            plan = _planned(client, group_id, form)
    text = "\n".join(f"{_quoted(topic)},{index},{offset}" for (topic, index), offset in sorted(plan.after.items()))
    if len(text) > MAX_TEXT:
        raise ValueError(f"{counted(len(plan.after), 'partition')} are too many for one form: name some topics")
    lines = [
        Difference(f"{topic}, {index}", _number(plan.before.get((topic, index))), _number(offset))
        for (topic, index), offset in sorted(plan.after.items())
        if plan.before.get((topic, index)) != offset
    ]
    return Change(
        f"Reset offsets of group {group_id}",
        lines,
        lambda: plan.apply(client),
        address("group", group=group_id),
        notes=_moved(plan),
        fields={"plan": text},
        needs=needed,
    )


def _planned(client: Groups, group_id: str, form: Query) -> GroupReset:
    """Return the new offsets by the rule of a form. Raises: ValueError; PageError 400; KafkaError."""
    rule = form.choice("rule", RULES, "")
    if rule == FROM_FILE:
        offsets = parse_offsets(form.text("rows").splitlines(), [group_id])
        if [*offsets] != [group_id]:
            raise ValueError(f"expected rows topic,partition,offset of group {group_id}, got {len(offsets)} groups")
        return plan_group_reset(client, group_id, {}, ResetTo.CURRENT, exact=offsets[group_id])
    to, value = ResetTo(rule), 0
    if to is ResetTo.TIMESTAMP:
        value = datetime_ms(form.text("time"))
    elif to in NUMBERED:
        value = _integer(form.text("value"), can_be_negative=to is ResetTo.SHIFT_BY)
    return plan_group_reset(client, group_id, topic_partitions(form.text("topics").split()), to, value)


def _integer(text: str, can_be_negative: bool) -> int:
    given = text.strip().replace(",", "")
    digits = given.removeprefix("-") if can_be_negative else given
    if not (digits.isascii() and digits.isdigit() and len(digits) < LONGEST_NUMBER and abs(int(given)) < 2**63):
        raise ValueError(f"expected a whole number, got {text[:LONGEST_NUMBER]!r}")
    return int(given)


def _moved(plan: GroupReset) -> list[str]:
    """Return sentences about records that are read again or skipped."""
    moves = [offset - plan.before[place] for place, offset in plan.after.items() if place in plan.before]
    again, skipped = -sum(move for move in moves if move < 0), sum(move for move in moves if move > 0)
    notes = [f"{counted(again, 'record')} or fewer will be read again."] if again else []
    return [*notes, f"{counted(skipped, 'record')} or fewer will be skipped."] if skipped else notes


def _quoted(topic: str) -> str:
    return '"' + topic.replace('"', '""') + '"' if set(topic) & set('",\n\r') else topic


def _number(offset: int | None) -> str | None:
    return None if offset is None else f"{offset:,}"


def remove(site: Site, form: Query) -> Change:
    """Return the change that removes a member of a group."""
    group_id, member_id = form.needed("group"), form.needed("member")
    described = described_group(site, group_id)
    found = [member for member in described.members if member.member_id == member_id]
    if not found:
        raise ValueError(f"group {group_id} has no member {member_id[:60]}; it may have left")
    (member,) = found
    partitions = counted(len(member.assignment), "partition") if not member.unread_bytes else "an assignment"
    return Change(
        f"Remove member {member_id} of group {group_id}",
        [Difference(f"member of {member.client_id} at {member.host}", partitions, None)],
        lambda: remove_member(Groups(site.cluster), group_id, described.group_type, member),
        address("group", group=group_id),
        notes=["Its partitions are assigned to the other members. A client that still runs joins again."],
        needs=Needed(Operation.READ, ResourceType.GROUP, group_id),
    )


def delete(site: Site, form: Query) -> Change:
    """Return the change that deletes a group without members."""
    group_id = form.needed("group")
    described = described_group(site, group_id)
    if described.is_active:
        count = counted(len(described.members), "member")
        raise ValueError(f"expected group {group_id} without members, found {count}; stop or remove them first")
    return Change(
        f"Delete group {group_id}",
        [Difference(f"{described.group_type} group and its offsets", described.state, None)],
        lambda: Groups(site.cluster).delete(group_id),
        address("groups"),
        confirm=group_id,
        back=address("group", group=group_id),
        needs=Needed(Operation.DELETE, ResourceType.GROUP, group_id),
    )
