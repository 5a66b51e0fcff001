"""Metadata by name, by id, of all topics and of none, and topics that a request creates."""

from tests.conformance.bodies import STRANGE_ID
from tests.conformance.codec import Body
from tests.conformance.run import situation
from tests.conformance.talk import Talk

ALL, WITHOUT_CREATION = "0-13", "4-13"
IMPOSSIBLE = ("", ".", "..", "with space", "n" * 250, "a/b", "ümlaut")


def named(*names: str, may_create: bool = False) -> Body:
    return {"Topics": [{"Name": name} for name in names], "AllowAutoTopicCreation": may_create}


@situation("Metadata", ALL)
def by_name(talk: Talk) -> None:
    """Request two topics, and one topic twice."""
    one, two = talk.topic("one", 3), talk.topic("two")
    talk.ask(named(one.name, two.name), "two")
    talk.ask(named(two.name, two.name), "twice")


@situation("Metadata", ALL)
def all_topics(talk: Talk) -> None:
    """Request all topics, by null or in version 0 by an empty list."""
    talk.topic("one", 2)
    talk.topic("two")
    topics: list[Body] | None = None if talk.version else []
    talk.ask({"Topics": topics, "AllowAutoTopicCreation": False}, only={"Topics": talk.is_own("Name")})


@situation("Metadata", "1-13")
def no_topics(talk: Talk) -> None:
    """Request brokers only, by an empty list."""
    talk.ask(named())


@situation("Metadata", WITHOUT_CREATION)
def unknown_name(talk: Talk) -> None:
    """Request an unknown topic twice without creation."""
    for note in ("once", "again"):
        talk.ask(named(talk.name("absent")), note)


@situation("Metadata", ALL)
def created_on_the_way(talk: Talk) -> None:
    """Check the topic in the response that creates it."""
    name = talk.name("made")
    talk.will_make(name)
    talk.ask(named(name, may_create=True))


@situation("Metadata", ALL)
def created_before(talk: Talk) -> None:
    """Check a topic in a later response, after another request has created it."""
    name = talk.name("made")
    talk.will_make(name)
    talk.quietly("Metadata", 12, named(name, may_create=True))
    talk.ready(name)
    talk.ask(named(name, may_create=True))


@situation("Metadata", ALL)
def impossible_names(talk: Talk) -> None:
    """Request impossible names with creation allowed."""
    talk.ask(named(*IMPOSSIBLE, may_create=True))


@situation("Metadata", WITHOUT_CREATION)
def impossible_names_only_asked(talk: Talk) -> None:
    """Request impossible names with creation not allowed."""
    talk.ask(named(*IMPOSSIBLE))


@situation("Metadata", WITHOUT_CREATION)
def name_too_much_alike(talk: Talk) -> None:
    """Create a topic whose name differs from another only in a dot."""
    talk.topic("a.b")
    talk.will_make(talk.name("a_b"))
    talk.ask(named(talk.name("a_b"), may_create=True))


@situation("Metadata", ALL)
def internal_topic(talk: Talk) -> None:
    """Request an internal topic: the flag, and the number of partitions."""
    body = named("__consumer_offsets", may_create=True)
    response = talk.ask(body, only={"Partitions": lambda row: row["PartitionIndex"] == 0})
    talk.observe("partitions", [len(row["Partitions"]) for row in response.get("Topics", [])])


@situation("Metadata", "9,12,13")
def deleted(talk: Talk) -> None:
    """Request a deleted topic."""
    topic = talk.topic()
    talk.quietly("DeleteTopics", 5, {"TopicNames": [topic.name], "TimeoutMs": 10_000})
    talk.gone(topic.name)
    talk.ask(named(topic.name))


@situation("Metadata", "10-13")
def by_id(talk: Talk) -> None:
    """Request a topic by its id, which version 12 and later support."""
    talk.ask({"Topics": [{"Name": None, "TopicId": talk.topic().id}], "AllowAutoTopicCreation": False})


@situation("Metadata", "12-13")
def by_unknown_id(talk: Talk) -> None:
    """Request an unknown id besides a known one."""
    rows = [{"Name": None, "TopicId": each} for each in (STRANGE_ID, talk.topic().id)]
    talk.ask({"Topics": rows, "AllowAutoTopicCreation": False})


@situation("Metadata", "10-13", over=("both", "neither", "one each"))
def name_and_id(talk: Talk, what: str) -> None:
    """Request topics by both name and id, by neither, and by one of each."""
    topic = talk.topic()
    by_name, by_id = {"Name": topic.name}, {"Name": None, "TopicId": topic.id}
    rows = {"both": [{**by_id, **by_name}], "neither": [{"Name": None}], "one each": [by_name, by_id]}[what]
    talk.ask({"Topics": rows, "AllowAutoTopicCreation": False})


@situation("Metadata", "8-13")
def authorized_operations(talk: Talk) -> None:
    """Request the authorized operations."""
    wanted = {"IncludeTopicAuthorizedOperations": True, "IncludeClusterAuthorizedOperations": True}
    talk.ask({**named(talk.topic().name), **wanted})
