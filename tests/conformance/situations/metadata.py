"""Metadata: by name, by id, all, none, and topics that a question makes."""

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
    """Two topics; one of them named twice."""
    one, two = talk.topic("one", 3), talk.topic("two")
    talk.ask(named(one.name, two.name), "two")
    talk.ask(named(two.name, two.name), "twice")


@situation("Metadata", ALL)
def all_topics(talk: Talk) -> None:
    """Null, or in version 0 an empty list."""
    talk.topic("one", 2)
    talk.topic("two")
    topics: list[Body] | None = None if talk.version else []
    talk.ask({"Topics": topics, "AllowAutoTopicCreation": False}, only={"Topics": talk.is_own("Name")})


@situation("Metadata", "1-13")
def no_topics(talk: Talk) -> None:
    """An empty list: brokers only."""
    talk.ask(named())


@situation("Metadata", WITHOUT_CREATION)
def unknown_name(talk: Talk) -> None:
    """It stays unknown."""
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
    """With leave to create."""
    talk.ask(named(*IMPOSSIBLE, may_create=True))


@situation("Metadata", WITHOUT_CREATION)
def impossible_names_only_asked(talk: Talk) -> None:
    """Without it."""
    talk.ask(named(*IMPOSSIBLE))


@situation("Metadata", WITHOUT_CREATION)
def name_too_much_alike(talk: Talk) -> None:
    """It would differ from another in a dot only."""
    talk.topic("a.b")
    talk.will_make(talk.name("a_b"))
    talk.ask(named(talk.name("a_b"), may_create=True))


@situation("Metadata", ALL)
def internal_topic(talk: Talk) -> None:
    """Its mark, and how many partitions it has."""
    body = named("__consumer_offsets", may_create=True)
    response = talk.ask(body, only={"Partitions": lambda row: row["PartitionIndex"] == 0})
    talk.observe("partitions", [len(row["Partitions"]) for row in response.get("Topics", [])])


@situation("Metadata", "9,12,13")
def deleted(talk: Talk) -> None:
    """A topic that was there."""
    topic = talk.topic()
    talk.quietly("DeleteTopics", 5, {"TopicNames": [topic.name], "TimeoutMs": 10_000})
    talk.gone(topic.name)
    talk.ask(named(topic.name))


@situation("Metadata", "10-13")
def by_id(talk: Talk) -> None:
    """From version 12 on."""
    talk.ask({"Topics": [{"Name": None, "TopicId": talk.topic().id}], "AllowAutoTopicCreation": False})


@situation("Metadata", "12-13")
def by_unknown_id(talk: Talk) -> None:
    """Beside one that is known."""
    rows = [{"Name": None, "TopicId": each} for each in (STRANGE_ID, talk.topic().id)]
    talk.ask({"Topics": rows, "AllowAutoTopicCreation": False})


@situation("Metadata", "10-13", over=("both", "neither", "one each"))
def name_and_id(talk: Talk, what: str) -> None:
    """Both in one entry, neither, an entry of each kind."""
    topic = talk.topic()
    by_name, by_id = {"Name": topic.name}, {"Name": None, "TopicId": topic.id}
    rows = {"both": [{**by_id, **by_name}], "neither": [{"Name": None}], "one each": [by_name, by_id]}[what]
    talk.ask({"Topics": rows, "AllowAutoTopicCreation": False})


@situation("Metadata", "8-13")
def authorized_operations(talk: Talk) -> None:
    """Only when they are asked for."""
    wanted = {"IncludeTopicAuthorizedOperations": True, "IncludeClusterAuthorizedOperations": True}
    talk.ask({**named(talk.topic().name), **wanted})
