"""Fetch without a session: bounds, limits, waiting, isolation and epochs."""

from tests.conformance.batches import batch
from tests.conformance.bodies import (
    LATEST,
    STRANGE_ID,
    delete_records,
    end_transaction,
    fetch,
    fill,
    list_offsets,
    named,
    open_transaction,
    put,
)
from tests.conformance.codec import ZERO_ID
from tests.conformance.run import TRANSACTIONS, situation
from tests.conformance.talk import Talk

ALL = "4-18"
MOVES_MEANWHILE = ("HighWatermark", "LastStableOffset")  # Kafka returns either value when an append completes a fetch


@situation("Fetch", ALL)
def by_offset(talk: Talk) -> None:
    """Fetch from the start, inside a batch, from the second batch, and at the end."""
    topic = talk.topic()
    fill(talk, topic, batches=2, records=3)
    for offset in (0, 1, 3, 6):
        talk.ask(fetch((topic, 0, offset)), f"at {offset}")


@situation("Fetch", ALL)
def out_of_range(talk: Talk) -> None:
    """Fetch after the end, below zero, and before the log start offset that DeleteRecords has set."""
    topic = talk.topic()
    fill(talk, topic, batches=3)
    delete_records(talk, topic, 2)
    for offset in (4, -1, 1, 2):
        talk.ask(fetch((topic, 0, offset)), f"at {offset}")


@situation("Fetch", ALL)
def nothing_there(talk: Talk) -> None:
    """Fetch a new partition, no topic, and a topic without partitions."""
    topic = talk.topic()
    talk.ask(fetch((topic, 0, 0)), "an empty one")
    talk.ask(fetch(MinBytes=1), "none")
    talk.ask(fetch(MinBytes=1, Topics=[named(topic, "Topic")]), "no partitions")


@situation("Fetch", ALL)
def partitions_that_are_not_there(talk: Talk) -> None:
    """Fetch unknown partitions besides a known one."""
    topic = talk.topic()
    fill(talk, topic)
    talk.ask(fetch((topic, 0, 0), (topic, 5, 0), (topic, -1, 0), MinBytes=1))


@situation("Fetch", "4-12")
def topics_that_are_not_there(talk: Talk) -> None:
    """Fetch an unknown topic and impossible names."""
    talk.ask(fetch((talk.name("absent"), 0, 0), ("", 0, 0), ("with space", 0, 0), MinBytes=1))


@situation("Fetch", "13-18")
def ids_that_are_not_there(talk: Talk) -> None:
    """Fetch an unknown topic id and the zero id besides a known one."""
    topic = talk.topic()
    fill(talk, topic)
    body = fetch((topic, 0, 0))
    partitions = body["Topics"][0]["Partitions"]
    body["Topics"] += [{"TopicId": each, "Partitions": partitions} for each in (STRANGE_ID, ZERO_ID)]
    talk.ask(body)


@situation("Fetch", "4,11,13,18")
def partition_named_twice(talk: Talk) -> None:
    """Fetch a partition twice in a request, with two offsets."""
    topic = talk.topic()
    fill(talk, topic, batches=2)
    talk.ask(fetch((topic, 0, 0), (topic, 0, 1)))


# ---- limits


@situation("Fetch", ALL)
def limit_of_a_partition(talk: Talk) -> None:
    """Limit the bytes of a partition: whole batches are returned, and the first one with any limit."""
    topic = talk.topic()
    fill(talk, topic, batches=4, value_bytes=100)
    for limit in (0, 1, 350, 100_000):
        talk.ask(fetch((topic, 0, 0), partition_bytes=limit), f"{limit} bytes")


@situation("Fetch", ALL)
def limit_of_the_request(talk: Talk) -> None:
    """Limit the bytes of a request for three partitions in the client's order."""
    topic = talk.topic(partitions=3)
    for partition in range(3):
        fill(talk, topic, batches=2, value_bytes=100, partition=partition)
    for limit in (0, 1, 400):
        talk.ask(fetch((topic, 2, 0), (topic, 0, 0), (topic, 1, 0), MaxBytes=limit), f"{limit} bytes")


@situation("Fetch", "4,12,13,18")
def limits_below_zero(talk: Talk) -> None:
    """Send negative limits of the partition, of the request, and of the wait."""
    topic = talk.topic()
    fill(talk, topic)
    talk.ask(fetch((topic, 0, 0), partition_bytes=-1), "partition")
    for note, fields in (
        ("request", {"MaxBytes": -1}),
        ("wait", {"MaxWaitMs": -1, "MinBytes": 1}),
        ("least", {"MinBytes": -1}),
    ):
        talk.ask(fetch((topic, 0, 0), **fields), note)


@situation("Fetch", "4,12,13,18")
def record_above_all_limits(talk: Talk) -> None:
    """Fetch a first batch above all limits, after which the next partition returns nothing."""
    topic = talk.topic(partitions=2)
    put(talk, topic, batch("v" * 5000, time_ms=talk.at()))
    fill(talk, topic, partition=1)
    talk.ask(fetch((topic, 0, 0), (topic, 1, 0), partition_bytes=1000, MaxBytes=1000))


# ---- waiting


@situation("Fetch", ALL)
def waits_for_enough(talk: Talk) -> None:
    """Fetch with too few bytes, which waits for the whole time, and with enough bytes, which does not wait."""
    topic = talk.topic()
    fill(talk, topic)
    waiting = talk.begin("Fetch", talk.version, fetch((topic, 0, 0), MaxWaitMs=300, MinBytes=5000), "too little")
    waiting.end()
    talk.observe("waited", 0.28 <= waiting.waited_s < 5)
    waiting = talk.begin("Fetch", talk.version, fetch((topic, 0, 0), MaxWaitMs=9000, MinBytes=1), "enough")
    waiting.end()
    talk.observe("at once", waiting.waited_s < 5)


@situation("Fetch", ALL)
def is_woken(talk: Talk) -> None:
    """Wait for a record, which completes the fetch."""
    topic = talk.topic()
    waiting = talk.begin("Fetch", talk.version, fetch((topic, 0, 0), MaxWaitMs=15_000, MinBytes=1))
    put(talk, topic, batch("wake", time_ms=talk.at()))
    waiting.end(without=MOVES_MEANWHILE)
    talk.observe("woken", waiting.waited_s < 10)


@situation("Fetch", "4,9,12,13,18")
def error_does_not_wait(talk: Talk) -> None:
    """Fetch with one partition in error, which completes the whole request."""
    topic = talk.topic()
    waiting = talk.begin("Fetch", talk.version, fetch((topic, 0, 0), (topic, 3, 0), MaxWaitMs=3000, MinBytes=1))
    waiting.end()
    talk.observe("at once", waiting.waited_s < 2)


# ---- epochs, replicas, isolation, compression


@situation("Fetch", "9-18")
def leader_epochs(talk: Talk) -> None:
    """Send a future leader epoch and the present one."""
    topic = talk.topic()
    fill(talk, topic)
    for note, epoch in (("future", 9), ("present", 0)):
        body = fetch((topic, 0, 0))
        body["Topics"][0]["Partitions"][0]["CurrentLeaderEpoch"] = epoch
        talk.ask(body, note)


@situation("Fetch", "12-18")
def last_fetched_epochs(talk: Talk) -> None:
    """Send the log's last fetched epoch, and one that the log cannot have, where the logs diverge."""
    topic = talk.topic()
    fill(talk, topic, batches=2)
    for note, epoch in (("present", 0), ("future", 5)):
        body = fetch((topic, 0, 1))
        body["Topics"][0]["Partitions"][0] |= {"LastFetchedEpoch": epoch, "CurrentLeaderEpoch": 0}
        talk.ask(body, note)


@situation("Fetch", "12-18")
def records_after_an_epoch(talk: Talk) -> None:
    """Send the present epoch with an offset after its end, where the logs diverge, without a session and in one."""
    topic = talk.topic()
    fill(talk, topic, batches=2)
    session = 0
    for note, offset, epoch in (("one after", 3, 0), ("far after", 99, 0), ("at the end", 2, 0), ("below zero", -1, 0)):
        body = fetch((topic, 0, offset), MinBytes=1, MaxWaitMs=50)
        body["Topics"][0]["Partitions"][0] |= {"LastFetchedEpoch": epoch, "CurrentLeaderEpoch": -1}
        talk.ask(body, note)
    for epoch in (0, 1, 2):
        body = fetch((topic, 0, 3), SessionId=session, SessionEpoch=epoch, MinBytes=1, MaxWaitMs=50)
        body["Topics"][0]["Partitions"][0] |= {"LastFetchedEpoch": 0, "CurrentLeaderEpoch": 0}
        if epoch == 2:
            body["Topics"] = []
        session = talk.ask(body, f"session epoch {epoch}")["SessionId"]


@situation("Fetch", "9-18")
def epochs_of_replica_nobody_knows(talk: Talk) -> None:
    """Fetch as replica 7, which does not exist, with the present leader epoch, a later one, and one below zero."""
    topic = talk.topic()
    fill(talk, topic)
    for epoch in (0, 9, -1, -2):
        body = fetch((topic, 0, 0), ReplicaId=7, ReplicaState={"ReplicaId": 7, "ReplicaEpoch": 1})
        body["Topics"][0]["Partitions"][0]["CurrentLeaderEpoch"] = epoch
        talk.ask(body, f"epoch {epoch}")


@situation("Fetch", "4,12,14,15,18")
def replica_nobody_knows(talk: Talk) -> None:
    """Fetch as replica 7, which does not exist."""
    topic = talk.topic()
    fill(talk, topic)
    talk.ask(fetch((topic, 0, 0), ReplicaId=7, ReplicaState={"ReplicaId": 7, "ReplicaEpoch": 1}))


@situation("Fetch", "11-18")
def rack(talk: Talk) -> None:
    """Send a client's rack, which a single node ignores."""
    topic = talk.topic()
    fill(talk, topic)
    talk.ask(fetch((topic, 0, 0), RackId="a"))


@situation("Fetch", "4,10,18")
def isolation_level_nobody_has(talk: Talk) -> None:
    """Send the unknown isolation level 2."""
    topic = talk.topic()
    fill(talk, topic)
    talk.ask(fetch((topic, 0, 0), IsolationLevel=2))


@situation("Fetch", "4,7,11,12,13,15,18", needs=TRANSACTIONS)
def isolation_levels(talk: Talk) -> None:
    """Fetch at both isolation levels during an open transaction, and after its abort."""
    topic = talk.topic()
    put(talk, topic, batch("before", time_ms=talk.at()))
    mine = open_transaction(talk, topic)
    end = list_offsets(topic, LATEST, isolation=1)

    def stable_offset() -> int:
        return int(talk.quietly("ListOffsets", 2, end)["Topics"][0]["Partitions"][0]["Offset"])

    for state in ("open", "aborted"):
        for level in (0, 1):
            talk.ask(fetch((topic, 0, 0), IsolationLevel=level), f"{state}, {level}")
        if state == "open":
            end_transaction(talk, mine, is_commit=False)
            talk.until("the marker", lambda: stable_offset() == 3)


@situation("Fetch", "4,11,12,18", needs=TRANSACTIONS)
def no_room_in_read_committed(talk: Talk) -> None:
    """Fetch two partitions in read_committed with space for the records of one, and for none."""
    topic = talk.topic(partitions=2)
    for partition in range(2):
        put(talk, topic, batch("a", time_ms=talk.at()), partition=partition)
    for limit in (1, 75):
        body = fetch((topic, 0, 0), (topic, 1, 0), MaxBytes=limit, IsolationLevel=1)
        talk.ask(body, f"{limit} bytes")
    talk.ask(fetch((topic, 0, 0), partition_bytes=0, IsolationLevel=1), "none of a partition")
    talk.ask(fetch((topic, 0, 0), (topic, 1, 0), partition_bytes=10, IsolationLevel=1), "few of each")


@situation("Fetch", "4,9,10,11,12,16")
def zstd(talk: Talk) -> None:
    """Fetch batches compressed by zstd, which versions before 10 do not support."""
    topic = talk.topic()
    put(talk, topic, batch("z", time_ms=talk.at(), codec="zstd"))
    talk.ask(fetch((topic, 0, 0)))


@situation("Fetch", "4,11,12,18", needs=TRANSACTIONS)
def aborted_in_part(talk: Talk) -> None:
    """Fetch parts of a log with three aborted transactions in read_committed."""
    topic = talk.topic()
    for label in "abc":
        mine = open_transaction(talk, topic, label)
        end_transaction(talk, mine, is_commit=False)
        fill(talk, topic)
    for offset in (0, 1, 2, 4):
        for limit in (0, 10, 80, 200, 400):
            body = fetch((topic, 0, offset), partition_bytes=limit, IsolationLevel=1)
            talk.ask(body, f"from {offset}, {limit} bytes")
