"""ListOffsets: the ends of a log, times, epochs and isolation."""

from tests.conformance.batches import Record, batch
from tests.conformance.bodies import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    delete_records,
    list_offsets,
    open_transaction,
    put,
)
from tests.conformance.run import TRANSACTIONS, situation
from tests.conformance.talk import Talk, Topic

ALL = "1-11"


def timed(talk: Talk) -> Topic:
    """Return a topic with records at T+10, T+40, T+20 and T+30: the times of the second batch are within the first."""
    topic = talk.topic()
    for first_ms, later_ms in ((10, 30), (20, 10)):
        put(talk, topic, batch("a", Record(b"b", later_ms=later_ms), time_ms=talk.at(first_ms)))
    for later_ms in (30, 40):
        talk.at(later_ms)
    return topic


@situation("ListOffsets", ALL, over=("-1", "-2", "-3", "-4", "-5", "-6", "-7"))
def times_with_a_meaning(talk: Talk, time_ms: str) -> None:
    """Look up special timestamps: latest, earliest, maximum, local, tiered, pending upload, and unknown."""
    talk.ask(list_offsets(timed(talk), int(time_ms)))


@situation("ListOffsets", "1,4,7,8,9,11", over=("-1", "-2", "-3", "-4", "-5"))
def empty_partition(talk: Talk, time_ms: str) -> None:
    """Look up the same offsets in a partition without records."""
    talk.ask(list_offsets(talk.topic(), int(time_ms)))


@situation("ListOffsets", ALL)
def by_time(talk: Talk) -> None:
    """Look up the first record at or after a time, where times do not ascend."""
    topic = timed(talk)
    for later_ms in (0, 10, 11, 15, 20, 25, 40, 41):
        talk.ask(list_offsets(topic, talk.at(later_ms)), f"T+{later_ms}")
    talk.ask(list_offsets(topic, 0), "zero")


@situation("ListOffsets", ALL)
def by_time_in_a_compressed_batch(talk: Talk) -> None:
    """Look up times in a compressed batch, whose records are examined one by one."""
    topic = talk.topic()
    rows = ("a", Record(b"b", later_ms=5), Record(b"c", later_ms=9))
    put(talk, topic, batch(*rows, time_ms=talk.at(), codec="gzip"))
    for later_ms in (5, 6, 9):
        talk.ask(list_offsets(topic, talk.at(later_ms)), f"T+{later_ms}")
    if talk.version >= 7:
        talk.ask(list_offsets(topic, MAX_TIMESTAMP), "newest")


@situation("ListOffsets", "1,7,11")
def log_append_time(talk: Talk) -> None:
    """Look up times in a topic with LogAppendTime, where the producer's time is ignored."""
    topic = talk.topic(message_timestamp_type="LogAppendTime")
    put(talk, topic, batch("a", "b", time_ms=talk.at()))
    talk.ask(list_offsets(topic, talk.at(1)), "T+1")
    if talk.version >= 7:
        talk.ask(list_offsets(topic, MAX_TIMESTAMP), "newest")


@situation("ListOffsets", ALL)
def deleted_records(talk: Talk) -> None:
    """Look up times after DeleteRecords: the start moves, and records before it are not found by any time."""
    topic = timed(talk)
    delete_records(talk, topic, 3)
    for note, time_ms in (("earliest", EARLIEST), ("latest", LATEST), ("T+5", talk.at(5)), ("T+40", talk.at(40))):
        talk.ask(list_offsets(topic, time_ms), note)


@situation("ListOffsets", ALL)
def some_are_not_there(talk: Talk) -> None:
    """Look up an unknown partition and an unknown topic besides two known partitions."""
    topic = talk.topic(partitions=2)
    put(talk, topic, batch("a", time_ms=talk.at()), partition=1)
    body = list_offsets(topic, LATEST, LATEST, LATEST)
    body["Topics"] += list_offsets(talk.name("absent"), LATEST)["Topics"]
    talk.ask(body)


@situation("ListOffsets", ALL)
def partition_named_twice(talk: Talk) -> None:
    """Look up two times of one partition in one request."""
    body = list_offsets(talk.topic(), LATEST)
    body["Topics"][0]["Partitions"].append({"PartitionIndex": 0, "Timestamp": EARLIEST})
    talk.ask(body)


@situation("ListOffsets", "1,6,11")
def nothing_asked(talk: Talk) -> None:
    """Send no topics, and a topic without partitions."""
    talk.ask({"ReplicaId": -1, "Topics": []}, "no topics")
    talk.ask(list_offsets(talk.topic()), "no partitions")


@situation("ListOffsets", "4-11")
def leader_epochs(talk: Talk) -> None:
    """Send a future leader epoch, the present one, and none."""
    topic = talk.topic()
    for epoch in (3, 0, -1):
        talk.ask(list_offsets(topic, LATEST, leader_epoch=epoch), f"epoch {epoch}")


@situation("ListOffsets", "1,5,11")
def replicas(talk: Talk) -> None:
    """Send replica ids: -2 is the debugging consumer, and no broker has id 7."""
    body = list_offsets(talk.topic(), LATEST)
    for replica in (-2, 7):
        talk.ask({**body, "ReplicaId": replica}, f"{replica}")


@situation("ListOffsets", "10-11")
def timeouts(talk: Talk) -> None:
    """Send time-outs of zero and below."""
    body = list_offsets(talk.topic(), LATEST)
    for timeout_ms in (0, -1):
        talk.ask({**body, "TimeoutMs": timeout_ms}, f"{timeout_ms}")


@situation("ListOffsets", "2-11", needs=TRANSACTIONS)
def isolation_levels(talk: Talk) -> None:
    """Look up offsets at both isolation levels during an open transaction, which ends the committed records."""
    topic = talk.topic()
    put(talk, topic, batch("before", time_ms=talk.at()))
    open_transaction(talk, topic)
    for level in (0, 1):
        talk.ask(list_offsets(topic, LATEST, isolation=level), f"latest, {level}")
        talk.ask(list_offsets(topic, talk.at(), isolation=level), f"by time, {level}")
