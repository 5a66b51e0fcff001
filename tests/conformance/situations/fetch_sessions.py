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
def of_nothing(talk: Talk) -> None:
    """Begin a session without partitions, which is not created."""
    talk.ask(fetch(SessionEpoch=0))
