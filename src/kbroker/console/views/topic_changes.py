"""Changes of topics: create, add partitions, delete records, empty, delete."""

from __future__ import annotations

import re

from kbroker.client.admin import CreatedTopic, NewTopic
from kbroker.client.cluster import TopicMetadata
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.console.changes import Change, Difference
from kbroker.console.denied import Needed
from kbroker.console.requests import Fields, PageError, Query
from kbroker.console.site import Site, View, address
from kbroker.console.views.configs import config_lines
from kbroker.console.views.topics import MOST_OFFSETS, found_topic, offsets

TOPIC = ResourceType.TOPIC
MAX_NAME = 300  # characters of a typed topic name; the rest is cut off
_OFFSETS = re.compile(r"[0-9]{1,10}:[0-9]{1,19}(,[0-9]{1,10}:[0-9]{1,19})*")  # partition:offset


def new_topic(site: Site, query: Query) -> View:
    """Return the form of a new topic."""
    return View("Create a topic", "topic_new.html", {"fields": Fields(query.values)})


def create(site: Site, form: Query) -> Change:
    """Return the change that creates a topic, validated by the cluster."""
    wanted = NewTopic(
        form.needed("topic")[:MAX_NAME],
        form.integer("partitions", -1, 1, 2**31 - 1),
        form.integer("replication", -1, 1, 2**15 - 1),
        config_lines(form.text("configs")),
    )

    def request(validate_only: bool) -> CreatedTopic:
        with site.needs(Operation.CREATE, TOPIC, wanted.name), site.needs(Operation.CREATE):
            return site.admin.create_topics([wanted], validate_only=validate_only)[0]

    checked = request(validate_only=True)
    lines = [
        Difference("topic", None, wanted.name),
        Difference("partitions", None, _count(checked.partitions, wanted.partitions)),
        Difference("replication factor", None, _count(checked.replication_factor, wanted.replication_factor)),
        *(Difference(name, None, text) for name, text in wanted.configs.items()),
    ]

    page, back = address("topic", topic=wanted.name), address("topics")
    return Change(f"Create topic {wanted.name}", lines, lambda: request(validate_only=False), page, back=back)


def _count(chosen: int, wanted: int) -> str:
    """Return a number as the cluster has chosen it; brokers before Kafka 2.4 do not report it."""
    if chosen >= 0:
        return f"{chosen:,}"
    return f"{wanted:,}" if wanted >= 0 else "the default of the cluster"


def add_partitions(site: Site, form: Query) -> Change:
    """Return the change that adds partitions to a topic, validated by the cluster."""
    topic = found_topic(site, form)
    total = form.integer("partitions", 0, 1, 2**31 - 1)

    def request(validate_only: bool) -> None:
        with site.needs(Operation.ALTER, TOPIC, topic.name):
            site.admin.create_partitions(topic.name, total, validate_only=validate_only)

    request(validate_only=True)
    lines = [Difference("partitions", f"{len(topic.partitions):,}", f"{total:,}")]
    notes = ["Partitions cannot be removed again. Records with a key may go to another partition than earlier ones."]
    title = f"Add partitions to topic {topic.name}"
    state = str(topic.topic_id)
    return Change(title, lines, lambda: request(validate_only=False), _page(topic), notes, state=state)


def delete_records(site: Site, form: Query) -> Change:
    """Return the change that deletes the records before an offset of one partition."""
    topic = found_topic(site, form)
    number = form.integer("partition", 0, 0, 2**31 - 1)
    if number >= len(topic.partitions):
        raise PageError(400, f"The topic has partitions 0 to {len(topic.partitions) - 1}; there is no {number:,}.")
    if not form.text("offset").strip():
        raise PageError(400, "Give an offset: the records before it are deleted.")
    offset = form.integer("offset", 0, 0, 2**63 - 1)
    title = f"Delete records of topic {topic.name}, partition {number}"
    return _deletion(site, topic, title, {number: offset})


def empty(site: Site, form: Query) -> Change:
    """Return the change that deletes all present records of a topic."""
    topic = found_topic(site, form)
    if len(topic.partitions) > MOST_OFFSETS:
        raise PageError(400, f"The page can empty topics of up to {MOST_OFFSETS:,} partitions.")
    fixed = form.text("offsets")
    if fixed:
        wanted = _fixed(fixed)
    else:
        known = offsets(site, [(topic.name, one.partition) for one in topic.partitions])
        wanted = {number: end for (_, number), (start, end, _) in known.items() if end is not None and end != start}
        unknown = [f"{number} ({problem})" for (_, number), (_, end, problem) in known.items() if end is None]
        if unknown:
            raise PageError(400, f"The offsets of some partitions are unknown: {', '.join(unknown[:5])}.")
    change = _deletion(site, topic, f"Empty topic {topic.name}", wanted)
    sent = ",".join(f"{number}:{offset}" for number, offset in wanted.items())
    return change._replace(confirm=topic.name, fields={"offsets": sent})


def _fixed(text: str) -> dict[int, int]:
    """Return the offsets of a form by partition. Raises: PageError 400."""
    parts = [one.split(":") for one in text.split(",")] if _OFFSETS.fullmatch(text) else []
    found = {int(number): int(offset) for number, offset in parts}
    if not found or len(found) < len(parts):
        raise PageError(400, "The offsets of the form cannot be read.")
    return found


def _deletion(site: Site, topic: TopicMetadata, title: str, before: dict[int, int]) -> Change:
    """Return the change that deletes the records before the offset of each partition."""
    known = offsets(site, [(topic.name, number) for number in before])
    lines: list[Difference] = []
    records = 0
    for number, offset in before.items():
        start, end, problem = known[topic.name, number]
        if start is None or end is None:
            raise PageError(400, f"The offsets of partition {number} are unknown: {problem}.")
        if offset > end:
            raise PageError(400, f"Partition {number} ends at offset {end:,}; got {offset:,}.")
        if offset > start:
            records += offset - start
            lines.append(Difference(f"first offset of partition {number}", f"{start:,}", f"{offset:,}"))

    notes = (
        [f"Up to {records:,} records are deleted for good; groups that have not read them miss them."] if lines else []
    )
    return Change(
        title,
        lines,
        lambda: site.admin.delete_records({(topic.name, number): offset for number, offset in before.items()}),
        _page(topic),
        notes,
        state=str(topic.topic_id),
        needs=Needed(Operation.DELETE, TOPIC, topic.name),
    )


def delete(site: Site, form: Query) -> Change:
    """Return the change that deletes a topic with all its records."""
    topic = found_topic(site, form)
    lines = [Difference("topic", topic.name, None), Difference("partitions", f"{len(topic.partitions):,}", None)]
    notes = ["All its records, configs and the offsets of its groups are deleted for good."]
    if topic.is_internal:
        notes.append("It is an internal topic: the cluster keeps its own state in it.")
    return Change(
        f"Delete topic {topic.name}",
        lines,
        lambda: site.admin.delete_topics([topic.name]),
        address("topics"),
        notes,
        confirm=topic.name,
        state=str(topic.topic_id),
        back=_page(topic),
        needs=Needed(Operation.DELETE, TOPIC, topic.name),
    )


def _page(topic: TopicMetadata) -> str:
    return address("topic", topic=topic.name)
