"""Topics: the list, and one topic with its partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.client.admin import EARLIEST, LATEST, OffsetInfo
from kbroker.client.cluster import PartitionMetadata, TopicMetadata
from kbroker.client.connection import BrokerConnectionError
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.common.topic_names import TopicPartition
from kbroker.console.denied import instead
from kbroker.console.line_chart import chart_of
from kbroker.console.paging import part_of
from kbroker.console.requests import Fields, PageError, Query
from kbroker.console.site import Site, View
from kbroker.metadata.image.partition_registration import PartitionRegistration
from kbroker.metadata.topics import TopicView

PARTITIONS = 100  # maximum number of partitions on a page
MOST_OFFSETS = 2000  # maximum number of partitions whose offsets a page requests
SORTS_OF_ALL, SORTS_OF_BROKER = ("name", "partitions", "size"), ("name", "partitions", "records", "size", "rate")


class Listed(NamedTuple):
    """A topic in the cluster's metadata. ``offline``: number of partitions without a leader."""

    name: str
    partitions: int
    offline: int
    is_internal: bool


class Figures(NamedTuple):
    """Sums over the partitions of a topic that are online; None: unknown."""

    records: int | None = None
    size_bytes: int | None = None
    offline: int = 0
    rate: float | None = None


class Row(NamedTuple):
    """A topic in the list."""

    topic: Listed
    figures: Figures


class PartitionRow(NamedTuple):
    """A partition of a topic; ``problem``: the reason why its offsets are unknown; ``mark``: its defect."""

    metadata: PartitionMetadata
    start: int | None
    end: int | None
    size_bytes: int | None
    problem: str
    mark: str


def listed(site: Site) -> list[Listed]:
    """Return the topics that the user may see, sorted by name.

    Topics of a broker in this process are read directly: a response with 10,000 topics takes 0.2 s of Python.
    """
    if site.has_broker:
        views = {view.name: view for view in site.context.topics.all()}
        names = sorted(site.allowed(Operation.DESCRIBE, ResourceType.TOPIC, views))
        return [_listed(views[name], views[name].registrations) for name in names]

    def request() -> list[Listed]:
        found = [one for one in site.cluster.fetch_metadata(None) if one.error is Errors.NONE]
        return [_listed(one, one.partitions) for one in sorted(found, key=lambda one: one.name)]

    return site.remember_metadata("topics", request)


def _listed(
    topic: TopicView | TopicMetadata, partitions: Iterable[PartitionRegistration | PartitionMetadata]
) -> Listed:
    offline = sum(one.leader < 0 for one in partitions)
    return Listed(topic.name, len(topic.partitions), offline, topic.is_internal)


def topics(site: Site, query: Query, path: str = "topics") -> View:
    """Return a page of the topics whose names contain ``q``; at ``messages``, each leads to its messages."""
    sorts = SORTS_OF_BROKER if site.has_broker else SORTS_OF_ALL
    wanted, sort = query.text("q").strip(), query.choice("sort", sorts, "name")
    has_internal = query.text("internal") == "1"
    found = [
        one for one in listed(site) if wanted.lower() in one.name.lower() and (has_internal or not one.is_internal)
    ]
    figures: Mapping[str, Figures] = {}
    if sort == "partitions":
        found.sort(key=lambda one: -one.partitions)
    elif sort != "name":
        figures = _figures(site, found, has_offsets=False)
        found.sort(key=lambda one: -_weight(figures[one.name], sort))
    part = part_of(found, query, path)
    if not figures or not site.has_broker:
        figures = _figures(site, part.rows, has_offsets=True)
    rows = [Row(one, figures[one.name]) for one in part.rows]
    values = {"part": part, "rows": rows, "q": wanted, "sort": sort, "internal": has_internal, "sorts": sorts}
    return View(path.capitalize(), "topics.html", {**values, "path": path})


def _weight(figures: Figures, sort: str) -> float:
    found = {"records": figures.records, "size": figures.size_bytes, "rate": figures.rate}[sort]
    return -1 if found is None else found


def _figures(site: Site, found: Sequence[Listed], has_offsets: bool) -> Mapping[str, Figures]:
    """Return the figures of topics: of the logs of this process, else of the cluster's brokers.

    Args: ``has_offsets``: request the numbers of records too.
    """
    if site.has_broker:
        has_sizes = site.may_describe_cluster
        return {one.name: _local_figures(site, one.name, has_sizes) for one in found}
    sizes: dict[str, int] = {}
    for (name, _), size_bytes in _sizes(site, [one.name for one in found]).items():
        sizes[name] = sizes.get(name, 0) + size_bytes
    records = _records(site, found) if has_offsets else {}
    return {one.name: Figures(records.get(one.name), sizes.get(one.name), one.offline) for one in found}


def _local_figures(site: Site, name: str, has_sizes: bool) -> Figures:
    view = site.context.topics.get(name)
    if view is None:
        return Figures()
    logs = [log for log in view.partitions if log is not None]
    node = site.context.node_id
    leaders = [one.leader for one in view.registrations]
    if not view.hosted(node):
        return Figures(offline=sum(leader < 0 for leader in leaders))
    failed = [log is None and leader == node for log, leader in zip(view.partitions, leaders, strict=False)]
    return Figures(
        sum(log.high_watermark - log.log_start_offset for log in logs),
        sum(log.size_bytes for log in logs) if has_sizes else None,
        sum(failed) + sum(leader < 0 for leader in leaders),
        site.local.topic_history.rate(name),
    )


def _sizes(site: Site, names: Sequence[str]) -> Mapping[TopicPartition, int]:
    """Return the bytes of partitions; none if they cannot be read, for example without Describe on the cluster."""
    if not names:
        return {}
    try:
        return site.admin.sizes(names)
    except (KafkaError, BrokerConnectionError):
        return {}


def _records(site: Site, found: Sequence[Listed]) -> Mapping[str, int]:
    """Return the numbers of records of the first topics, for as many partitions as a page may request."""
    partitions: list[TopicPartition] = []
    for one in found:
        if len(partitions) + one.partitions > MOST_OFFSETS:
            break
        partitions += [(one.name, number) for number in range(one.partitions)]
    sums: dict[str, int] = {}
    for (name, _), (start, end, _) in offsets(site, partitions).items():
        if start is not None and end is not None:
            sums[name] = sums.get(name, 0) + end - start
    return sums


def offsets(
    site: Site, partitions: Sequence[TopicPartition]
) -> Mapping[TopicPartition, tuple[int | None, int | None, str]]:
    """Return the first offset and the end of partitions, and the reason if they are unknown."""
    starts = site.admin.try_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = site.admin.try_offsets(dict.fromkeys(partitions, LATEST))
    found: dict[TopicPartition, tuple[int | None, int | None, str]] = {}
    for tp in partitions:
        start, end = starts.get(tp), ends.get(tp)
        if isinstance(start, OffsetInfo) and isinstance(end, OffsetInfo):
            found[tp] = start.offset, end.offset, ""
        else:
            error = next((one for one in (start, end) if isinstance(one, KafkaError)), None)
            found[tp] = None, None, "no response" if error is None else error.message
    return found


def found_topic(site: Site, query: Query) -> TopicMetadata:
    """Return the topic of the parameter ``topic``. Raises: PageError 404, 403."""
    name = query.needed("topic")
    missing = PageError(404, f"Topic {name[:249]!r} does not exist; it may have been deleted.")
    needed = site.needs(Operation.DESCRIBE, ResourceType.TOPIC, name)
    with needed, instead(missing, Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.INVALID_TOPIC_EXCEPTION):
        return site.admin.describe_topics([name])[0]


def topic(site: Site, query: Query) -> View:
    """Return one topic: a page of its partitions, its last ten minutes, and the forms to change it."""
    found = found_topic(site, query)
    kept = Query({name: text for name, text in query.values.items() if name in ("topic", "page")})
    part = part_of(found.partitions, kept, "topic", PARTITIONS)
    rows = _partition_rows(site, found.name, part.rows)
    if site.has_broker:
        figures = _local_figures(site, found.name, site.may_describe_cluster)
    else:
        one = _listed(found, found.partitions)
        figures = _figures(site, [one], has_offsets=one.partitions <= MOST_OFFSETS)[one.name]
    points = site.local.topic_history.points(found.name) if site.has_broker else []
    values = {
        "topic": found,
        "figures": figures,
        "part": part,
        "rows": rows,
        "rate_chart": chart_of((one.time_ms, one.records) for one in points),
        "size_chart": None if figures.size_bytes is None else chart_of((one.time_ms, one.size_bytes) for one in points),
        "fields": Fields(),
        "problem": "",
    }
    return View("Topic", "topic.html", values)


def _partition_rows(site: Site, name: str, partitions: Sequence[PartitionMetadata]) -> list[PartitionRow]:
    known = offsets(site, [(name, one.partition) for one in partitions])
    view = site.context.topics.get(name) if site.has_broker else None
    sizes = _sizes(site, [name]) if view is None else {}
    sees_sizes = view is not None and site.may_describe_cluster
    rows = []
    for one in partitions:
        tp = name, one.partition
        log = view.partitions[one.partition] if view is not None and one.partition < len(view.partitions) else None
        is_offline = view is not None and log is None and one.leader == site.context.node_id
        problem = "its log could not be opened; the broker's log says why" if is_offline else known[tp][2]
        mark = "offline" if is_offline or one.leader < 0 else _mark(log)
        size_bytes = log.size_bytes if log is not None and sees_sizes else sizes.get(tp)
        rows.append(PartitionRow(one, known[tp][0], known[tp][1], size_bytes, problem, mark))
    return rows


def _mark(log: Any) -> str:
    if log is None:
        return ""
    if log.damage_offset is not None:
        return "damaged"
    return "takes no appends" if log.is_failed else ""
