"""Topics: created, described, deleted, with more partitions and with deleted records."""

from tests.conformance.bodies import STRANGE_ID, fill
from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.talk import Talk

CREATE, DELETE, GROW, CUT = "2-7", "1-6", "0-3", "0-2"
IMPOSSIBLE = ("", ".", "..", "with space", "n" * 250, "a/b", "ümlaut")


def new(
    name: str, partitions: int = 1, factor: int = 1, assigned: dict[int, list[int]] | None = None, **configs: str | None
) -> Body:
    return {
        "Name": name,
        "NumPartitions": partitions,
        "ReplicationFactor": factor,
        "Assignments": [{"PartitionIndex": index, "BrokerIds": ids} for index, ids in (assigned or {}).items()],
        "Configs": [{"Name": key.replace("_", "."), "Value": value} for key, value in configs.items()],
    }


def create(*topics: Body, only_validate: bool = False, timeout_ms: int = 10_000) -> Body:
    return {"Topics": list(topics), "timeoutMs": timeout_ms, "validateOnly": only_validate}


@situation("CreateTopics", CREATE)
def created(talk: Talk) -> None:
    """Create two topics, one of them with configs; create them again; request their metadata."""
    one, two = talk.name("one"), talk.name("two")
    talk.will_make(one, two)
    body = create(new(one, 3), new(two, retention_ms="1000", cleanup_policy="compact"))
    talk.ask(body, "two")
    talk.ready(one, 3)
    talk.ready(two)
    talk.ask(body, "again")
    talk.also("Metadata", 8, {"Topics": [{"Name": one}, {"Name": two}]})


@situation("CreateTopics", CREATE)
def only_validated(talk: Talk) -> None:
    """Validate a new topic, an existing one and an impossible name; nothing is created."""
    names = (talk.name("new"), talk.topic().name, "with space")
    talk.ask(create(*map(new, names), only_validate=True))
    talk.also("Metadata", 8, {"Topics": [{"Name": names[0]}], "AllowAutoTopicCreation": False})


@situation("CreateTopics", CREATE)
def names(talk: Talk) -> None:
    """Create topics with impossible names, and with the longest possible name."""
    talk.ask(create(*map(new, IMPOSSIBLE)), "impossible")
    longest = talk.name("n" * (249 - len(talk.name(""))))
    talk.will_make(longest)
    talk.ask(create(new(longest)), "longest")


@situation("CreateTopics", CREATE)
def name_too_much_alike(talk: Talk) -> None:
    """Create a topic with an underscore where another topic has a dot."""
    talk.topic("a.b")
    talk.ask(create(new(talk.name("a_b")), only_validate=True))


@situation("CreateTopics", CREATE)
def internal_name_and_none(talk: Talk) -> None:
    """Create __consumer_offsets, which exists, and no topics, which is not an error."""
    talk.also(
        "Metadata", 4, {"Topics": [{"Name": "__consumer_offsets"}], "AllowAutoTopicCreation": True}, without=("Topics",)
    )
    talk.ask(create(new("__consumer_offsets"), only_validate=True), "internal")
    talk.ask(create(), "none")


@situation("CreateTopics", CREATE)
def counts(talk: Talk) -> None:
    """Create topics with impossible numbers of partitions and replicas; -1 is the default from version 4 on."""
    name = talk.name("t")
    talk.will_make(name)
    for partitions, factor in ((0, 1), (-2, 1), (1, 0), (1, 2), (1, 3), (1, -2), (-1, -1)):
        talk.ask(create(new(name, partitions, factor)), f"{partitions} x {factor}")


@situation("CreateTopics", CREATE)
def assignments(talk: Talk) -> None:
    """Create topics with assignments to unknown brokers, with duplicates or gaps, with counts, and valid ones."""
    node, name = talk.broker.node_id, talk.name("t")
    talk.will_make(name)
    rows = {
        "unknown broker": new(name, -1, -1, {0: [99]}),
        "broker twice": new(name, -1, -1, {0: [node, node]}),
        "gap": new(name, -1, -1, {0: [node], 2: [node]}),
        "not from 0": new(name, -1, -1, {1: [node]}),
        "no broker": new(name, -1, -1, {0: []}),
        "with a count": new(name, 1, -1, {0: [node]}),
        "with a factor": new(name, -1, 1, {0: [node]}),
        "right": new(name, -1, -1, {0: [node], 1: [node]}),
    }
    for note, topic in rows.items():
        talk.ask(create(topic), note)


BAD_CONFIGS = (
    *(("no.such.key", "1"), ("retention.ms", "soon"), ("retention.ms", "-2"), ("retention.ms", None)),
    *(("segment.bytes", "1"), ("cleanup.policy", "shred"), ("cleanup.policy", ""), ("compression.type", "zip")),
    *(("min.insync.replicas", "0"), ("max.message.bytes", "-1"), ("message.timestamp.type", "Never")),
    *(("preallocate", "maybe"), ("min.cleanable.dirty.ratio", "2")),
)


@situation("CreateTopics", CREATE)
def bad_configs(talk: Talk) -> None:
    """Create topics with unknown keys, values of wrong types or out of range, and null."""
    for number, (key, value) in enumerate(BAD_CONFIGS):
        topic = {**new(talk.name(f"t{number}")), "Configs": [{"Name": key, "Value": value}]}
        talk.ask(create(topic, only_validate=True), f"{key}={value}")


@situation("CreateTopics", CREATE)
def named_twice(talk: Talk) -> None:
    """Create a topic twice in a request besides another topic, and a topic with a config twice."""
    name, other, fine = talk.name("twice"), talk.name("config"), talk.name("fine")
    talk.will_make(name, other, fine)
    talk.ask(create(new(name), new(name, 2), new(fine)), "topic")
    rows = [{"Name": "retention.ms", "Value": value} for value in ("1000", "2000")]
    talk.ask(create({**new(other), "Configs": rows}), "config")


# Fields that vary in Kafka's own responses in so short a time.
RACE = (
    *("ErrorCode", "ErrorMessage", "NumPartitions", "ReplicationFactor", "Configs", "TopicId"),
    "TopicConfigErrorCode",
)


@situation("CreateTopics", CREATE)
def short_timeouts(talk: Talk) -> None:
    """Create topics with time-outs of zero and below, for which only the form of the response is compared."""
    for timeout_ms in (0, -1):
        name = talk.name(f"t{timeout_ms}")
        talk.will_make(name)
        talk.ask(create(new(name), timeout_ms=timeout_ms), f"{timeout_ms} ms", without=RACE)


# ---- DeleteTopics


def by_name(version: int, *names: str) -> Body:
    rows = {"Topics": [{"Name": name} for name in names]} if version >= 6 else {"TopicNames": list(names)}
    return {**rows, "TimeoutMs": 10_000}


@situation("DeleteTopics", DELETE)
def deleted(talk: Talk) -> None:
    """Delete a topic besides an unknown one, delete it again, and delete none."""
    topic = talk.topic()
    talk.ask(by_name(talk.version, topic.name, talk.name("absent")), "two")
    talk.gone(topic.name)
    talk.ask(by_name(talk.version, topic.name), "again")
    talk.ask(by_name(talk.version), "none")


@situation("DeleteTopics", DELETE)
def odd_deletes(talk: Talk) -> None:
    """Delete impossible names, and a topic twice in a request."""
    topic = talk.topic()
    talk.ask(by_name(talk.version, "", "with space"), "impossible")
    talk.ask(by_name(talk.version, topic.name, topic.name), "twice")


@situation("DeleteTopics", "6")
def deleted_by_id(talk: Talk) -> None:
    """Delete topics by id: besides an unknown id, without name and id, with both, and in two entries."""
    one, two = talk.topic("one"), talk.topic("two")
    rows: dict[str, list[Body]] = {
        "by id": [{"TopicId": one.id}, {"TopicId": STRANGE_ID}],
        "neither": [{"Name": None}],
        "both": [{"Name": two.name, "TopicId": two.id}],
        "two entries": [{"Name": two.name}, {"TopicId": two.id}],
    }
    for note, topics in rows.items():
        talk.ask({"Topics": topics, "TimeoutMs": 10_000}, note)


# ---- CreatePartitions


def grow(name: str, count: int, assigned: list[list[int]] | None = None, *, only_validate: bool = False) -> Body:
    rows = None if assigned is None else [{"BrokerIds": ids} for ids in assigned]
    topics = [{"Name": name, "Count": count, "Assignments": rows}]
    return {"Topics": topics, "TimeoutMs": 10_000, "ValidateOnly": only_validate}


@situation("CreatePartitions", GROW)
def grown(talk: Talk) -> None:
    """Add partitions: only validate, add, repeat, ask for fewer, and name unknown topics."""
    name = talk.topic().name
    talk.ask(grow(name, 3, only_validate=True), "validated")
    talk.ask(grow(name, 3), "done")
    talk.ready(name, 3)
    for count in (3, 1, 0, -1):
        talk.ask(grow(name, count), f"to {count}")
    for note, other in (("unknown", talk.name("absent")), ("impossible", "with space")):
        talk.ask(grow(other, 2), note)
    talk.ask({"Topics": [], "TimeoutMs": 1000}, "none")
    talk.also("Metadata", 8, {"Topics": [{"Name": name}]})


@situation("CreatePartitions", GROW)
def grown_with_assignments(talk: Talk) -> None:
    """Add partitions with too few or too many assignments, unknown, duplicate or no brokers, and with valid ones."""
    node, name = talk.broker.node_id, talk.topic().name
    rows: tuple[tuple[str, list[list[int]]], ...] = (
        ("too few", [[node]]),
        ("too many", [[node]] * 3),
        ("unknown", [[node], [99]]),
    )
    rows += (("twice", [[node, node], [node]]), ("empty", [[], []]), ("none", []), ("right", [[node], [node]]))
    for note, assigned in rows:
        talk.ask(grow(name, 3, assigned, only_validate=note != "right"), note)


@situation("CreatePartitions", GROW)
def grown_twice_at_once(talk: Talk) -> None:
    """Add partitions to a topic that is named twice in a request."""
    name = talk.topic().name
    talk.ask({**grow(name, 2), "Topics": grow(name, 2)["Topics"] + grow(name, 3)["Topics"]})


# ---- DeleteRecords


def cut(topic: str, *offsets: int) -> Body:
    partitions = [{"PartitionIndex": index, "Offset": offset} for index, offset in enumerate(offsets)]
    return {"TimeoutMs": 5000, "Topics": [{"Name": topic, "Partitions": partitions}]}


@situation("DeleteRecords", CUT)
def records_deleted(talk: Talk) -> None:
    """Delete records before an offset, before a lower one, beyond the end, below zero, and to the end (-1)."""
    topic = talk.topic()
    fill(talk, topic, batches=5)
    for offset in (2, 1, 6, -2, -1, 5):
        talk.ask(cut(topic.name, offset), f"before {offset}")


@situation("DeleteRecords", CUT)
def records_not_deleted(talk: Talk) -> None:
    """Delete records of unknown, compacted and internal topics, and of none."""
    topic, compacted = talk.topic(), talk.topic("compacted", cleanup_policy="compact")
    talk.ask(cut(topic.name, 0, 0), "unknown partition")
    rows = (("unknown topic", talk.name("absent")), ("compacted", compacted.name), ("internal", "__consumer_offsets"))
    for note, name in rows:
        talk.ask(cut(name, 0), note)
    talk.ask({"TimeoutMs": 1000, "Topics": []}, "none")
    talk.ask(cut(topic.name), "no partitions")


# ---- DescribeTopicPartitions


def page(limit: int, *names: str, cursor: tuple[str, int] | None = None) -> Body:
    begin = None if cursor is None else {"TopicName": cursor[0], "PartitionIndex": cursor[1]}
    return {"Topics": [{"Name": name} for name in names], "ResponsePartitionLimit": limit, "Cursor": begin}


@situation("DescribeTopicPartitions", "0")
def described(talk: Talk) -> None:
    """Describe topics in the order of names, besides unknown ones, twice, and all."""
    one, two = talk.topic("one", 2).name, talk.topic("two").name
    rows = {"two": (two, one), "unknown": (talk.name("absent"), one), "impossible": ("with space", one)}
    for note, wanted in {**rows, "no name": ("", one), "twice": (one, one)}.items():
        talk.ask(page(2000, *wanted), note, in_order=("Topics",))
    own = {"Topics": talk.is_own("Name")}
    talk.ask(page(2000), "all", in_order=("Topics",), only=own, without=("NextCursor",))


@situation("DescribeTopicPartitions", "0")
def described_by_pages(talk: Talk) -> None:
    """Describe topics by pages of two partitions, with unusual limits, and with cursors to other partitions."""
    one, two = talk.topic("a", 3).name, talk.topic("b", 2).name
    cursors = {"second": (one, 2), "third": (two, 1)}
    talk.ask(page(2, one, two), "first", in_order=("Topics",))
    for note, cursor in cursors.items():
        talk.ask(page(2, one, two, cursor=cursor), note, in_order=("Topics",))
    for limit in (3, 0, -1):
        talk.ask(page(limit, one, two), f"limit {limit}", in_order=("Topics",))
    for note, cursor in {"between": (talk.name("aa"), 0), "behind": (one, 9), "below zero": (one, -1)}.items():
        talk.ask(page(10, one, two, cursor=cursor), note, in_order=("Topics",))
