"""Incremental fetches: the state of a session, and requests that are refused."""

from tests.conformance.bodies import fetch, fill, forgotten
from tests.conformance.run import situation
from tests.conformance.talk import Talk

ALL = "7-18"


@situation("Fetch", ALL)
def life(talk: Talk) -> None:
    """Open a session, change its offsets and partitions, wait for changes, and close it."""
    one, two = talk.topic("one"), talk.topic("two", 2)
    fill(talk, one)
    session = talk.ask(fetch((one, 0, 0), (two, 0, 0), SessionEpoch=0), "opens").get("SessionId", 0)
    talk.ask(fetch((one, 0, 1), SessionId=session, SessionEpoch=1), "moves on")
    fill(talk, two)
    talk.ask(fetch(SessionId=session, SessionEpoch=2, MinBytes=1, MaxWaitMs=5000), "what changed")
    fill(talk, two, partition=1)
    talk.ask(
        fetch((two, 1, 0), SessionId=session, SessionEpoch=3, ForgottenTopicsData=forgotten(two, 0)),
        "one more, one less",
    )
    talk.ask(fetch(SessionId=session, SessionEpoch=4), "again")
    talk.ask(fetch((one, 0, 0), SessionId=session, SessionEpoch=-1), "closes")
    talk.ask(fetch(SessionId=session, SessionEpoch=5), "afterwards")


@situation("Fetch", ALL)
def wrong_epochs(talk: Talk) -> None:
    """Send epochs that are too high or repeated, of an unknown session, and of no session."""
    topic = talk.topic()
    fill(talk, topic)
    session = talk.ask(fetch((topic, 0, 0), SessionEpoch=0), "opens").get("SessionId", 0)
    for note, epoch in (("too high", 5), ("right", 1), ("again", 1)):
        talk.ask(fetch(SessionId=session, SessionEpoch=epoch), note)
    talk.ask(fetch(SessionId=(session % 1_000_000) + 1, SessionEpoch=1), "unknown session")
    talk.ask(fetch((topic, 0, 0), SessionId=0, SessionEpoch=1), "no session")


@situation("Fetch", "7,12,13,17")
def replaced(talk: Talk) -> None:
    """Send epoch 0 in a session, which begins another session and ends the first."""
    topic = talk.topic()
    old = talk.ask(fetch((topic, 0, 0), SessionEpoch=0), "opens").get("SessionId", 0)
    new = talk.ask(fetch((topic, 0, 0), SessionId=old, SessionEpoch=0), "opens another").get("SessionId", 0)
    talk.observe("is another", old != new)
    talk.ask(fetch(SessionId=old, SessionEpoch=1), "the old one")


@situation("Fetch", ALL)
def partitions_in_error(talk: Talk) -> None:
    """Fetch partitions in error, which are in each response until they are corrected."""
    topic = talk.topic()
    fill(talk, topic)
    session = talk.ask(fetch((topic, 0, 9), (topic, 4, 0), SessionEpoch=0), "opens").get("SessionId", 0)
    talk.ask(fetch(SessionId=session, SessionEpoch=1), "again")
    talk.ask(fetch((topic, 0, 0), SessionId=session, SessionEpoch=2), "one put right")


@situation("Fetch", "13-18")
def names_and_ids(talk: Talk) -> None:
    """Use a session of version 12 by topic id, and the reverse."""
    topic = talk.topic()
    fill(talk, topic)
    session = talk.also("Fetch", 12, fetch((topic, 0, 0), SessionEpoch=0), "by name").get("SessionId", 0)
    talk.ask(fetch((topic, 0, 0), SessionId=session, SessionEpoch=1), "by id")
    session = talk.ask(fetch((topic, 0, 0), SessionEpoch=0), "by id").get("SessionId", 0)
    talk.also("Fetch", 12, fetch((topic, 0, 0), SessionId=session, SessionEpoch=1), "by name")


@situation("Fetch", "7,12,13,18")
def ends_with_a_fetch(talk: Talk) -> None:
    """Forget all partitions of a session and name one of them, which is fetched once without a session."""
    topic = talk.topic(partitions=2)
    fill(talk, topic)
    session = talk.ask(fetch((topic, 0, 0), (topic, 1, 0), SessionEpoch=0), "opens").get("SessionId", 0)
    body = fetch((topic, 1, 0), SessionId=session, SessionEpoch=1, ForgottenTopicsData=forgotten(topic, 0, 1))
    talk.ask(body, "forgets all and names one")
    talk.ask(fetch(SessionId=session, SessionEpoch=2), "afterwards")


@situation("Fetch", "7,12,13,18")
def of_nothing(talk: Talk) -> None:
    """Begin a session without partitions, which is not created."""
    talk.ask(fetch(SessionEpoch=0))


@situation("Fetch", "7,12,13,16,18")
def topic_is_recreated(talk: Talk) -> None:
    """Fetch in a session while the topic is deleted and created again with records."""
    topic = talk.topic()
    fill(talk, topic)
    session = talk.ask(fetch((topic, 0, 0), SessionEpoch=0), "opens").get("SessionId", 0)
    talk.ask(fetch(SessionId=session, SessionEpoch=1), "nothing new")
    talk.quietly("DeleteTopics", 5, {"TopicNames": [topic.name], "TimeoutMs": 5000})
    talk.gone(topic.name)
    talk.ask(fetch(SessionId=session, SessionEpoch=2), "deleted")
    talk.ask(fetch(SessionId=session, SessionEpoch=3), "deleted, again")
    again = talk.topic()
    fill(talk, again)
    talk.ask(fetch(SessionId=session, SessionEpoch=4), "created again")
    talk.ask(fetch((again, 0, 0), SessionId=session, SessionEpoch=5), "named by its present id")
    talk.ask(fetch(SessionId=session, SessionEpoch=6), "afterwards")
    talk.ask(fetch(SessionId=session, SessionEpoch=7, ForgottenTopicsData=forgotten(topic, 0)), "the old one forgotten")


@situation("Fetch", "7,8,11,12,13", over=("7", "11", "12", "13"))
def other_version(talk: Talk, later: str) -> None:
    """Continue a session, with a partition whose log diverges, in another version."""
    topic = talk.topic(partitions=2)
    fill(talk, topic, batches=2)
    body = fetch((topic, 0, 3), (topic, 1, 0), SessionEpoch=0)
    body["Topics"][0]["Partitions"][0] |= {"LastFetchedEpoch": 0, "CurrentLeaderEpoch": 0}
    session = talk.ask(body, "opens").get("SessionId", 0)
    talk.also("Fetch", int(later), fetch(SessionId=session, SessionEpoch=1), "in another version")
    talk.also("Fetch", int(later), fetch(SessionId=session, SessionEpoch=2), "again")
