"""Produce: records that are appended and fetched again, and batches that are refused, with their errors."""

from typing import Any

from tests.conformance.batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Record, batch, old_message
from tests.conformance.bodies import (
    LATEST,
    STRANGE_ID,
    Producer,
    add_partitions,
    delete_records,
    fill,
    list_offsets,
    produce,
    producer,
    read_back,
)
from tests.conformance.codec import ZERO_ID
from tests.conformance.run import TRANSACTIONS, situation
from tests.conformance.talk import Talk

ALL = "3-13"
HOUR_MS = 3_600_000


@situation("Produce", ALL)
def two_batches_read_back(talk: Talk) -> None:
    """Append records with keys, nulls and headers, with acks 1 and -1, and fetch all fields of the stored batches."""
    topic = talk.topic(partitions=2)
    rows = (Record(b"first", b"key", (("name", b"value"), ("null", None))), Record(None, b"key"))
    talk.ask(produce((topic, 0, batch(*rows, time_ms=talk.at())), acks=1), "acks 1")
    talk.ask(produce((topic, 0, batch("third", time_ms=talk.at(5)))), "acks -1")
    read_back(talk, topic)


@situation("Produce", ALL)
def many_partitions(talk: Talk) -> None:
    """Append to three partitions of two topics in one request."""
    one, two = talk.topic("one", 2), talk.topic("two")
    a, b, c = (batch(*values, time_ms=talk.at()) for values in ("a", "bc", "d"))
    talk.ask(produce((one, 0, a), (one, 1, b), (two, 0, c)))


@situation("Produce", ALL)
def nothing_to_append(talk: Talk) -> None:
    """Send no topics, and a topic without partitions."""
    talk.ask(produce(acks=1), "no topics")
    topic = talk.topic()
    talk.ask({**produce(acks=1), "TopicData": [{"Name": topic.name, "TopicId": topic.id}]}, "no partitions")


@situation("Produce", ALL)
def topics_that_are_not_there(talk: Talk) -> None:
    """Append to an unknown name or id besides a known topic."""
    topic = talk.topic()
    records = batch("a", time_ms=talk.at())
    body = produce((topic, 0, records), (talk.name("absent"), 0, records))
    body["TopicData"][1]["TopicId"] = STRANGE_ID
    talk.ask(body)


@situation("Produce", "13")
def topic_without_an_id(talk: Talk) -> None:
    """Append to the zero topic id."""
    partitions = [{"Index": 0, "Records": batch("a", time_ms=talk.at())}]
    talk.ask({**produce(acks=1), "TopicData": [{"TopicId": ZERO_ID, "PartitionData": partitions}]})


@situation("Produce", ALL)
def partitions_that_are_not_there(talk: Talk) -> None:
    """Append to the unknown partitions 7 and -1 besides a known one."""
    topic, records = talk.topic(), batch("a", time_ms=talk.at())
    talk.ask(produce((topic, 0, records), (topic, 7, records), (topic, -1, records)))


@situation("Produce", "9-13")
def partition_named_twice(talk: Talk) -> None:
    """Send two batches for one partition in a request, and look up the end offset."""
    topic = talk.topic()
    talk.ask(produce(*((topic, 0, batch(value, time_ms=talk.at())) for value in "ab")))
    talk.also("ListOffsets", 5, list_offsets(topic, LATEST))


@situation("Produce", "3-12")
def internal_topic(talk: Talk) -> None:
    """Append to __consumer_offsets, which clients may not write."""
    talk.ask(produce(("__consumer_offsets", 0, batch("a", time_ms=talk.at()))))


@situation("Produce", "3-12")
def impossible_names(talk: Talk) -> None:
    """Append to topics with names that are empty, a dot, with a space, and too long."""
    names = ("", ".", "with space", "n" * 250)
    talk.ask(produce(*((name, 0, batch("a", time_ms=talk.at())) for name in names)))


@situation("Produce", ALL)
def acks_of_two(talk: Talk) -> None:
    """Append with acks of 2 and -2, which are invalid."""
    topic = talk.topic()
    talk.ask(produce((topic, 0, batch("a", time_ms=talk.at())), acks=2))
    talk.ask(produce((topic, 0, batch("a", time_ms=talk.at())), acks=-2), "-2")


@situation("Produce", "3-13", over=("acks", "internal"))
def forms_are_judged_first(talk: Talk, what: str) -> None:
    """Send records that are not one batch of the version to an internal topic or with acks of two."""
    internal = what == "internal"
    topic = talk.topic()
    if internal:
        talk.quietly("FindCoordinator", 2, {"Key": topic.name, "KeyType": 0})
        topic = talk.ready("__consumer_offsets", 50)
    whole = batch("a", time_ms=talk.at())
    forms = {
        "magic 1": old_message(b"a", 1, talk.at()),
        "two batches": whole + whole,
        "zstd": batch("a", time_ms=talk.at(), codec="zstd"),
        "wrong checksum": whole[:-1] + b"\x7f",
    }
    for note, records in forms.items():
        talk.ask(produce((topic, 0, records), acks=1 if internal else 2), note)


@situation("Produce", ALL)
def without_acks(talk: Talk) -> None:
    """Append with acks 0: there is no response, and the record is stored."""
    topic = talk.topic()
    talk.expect_silence(produce((topic, 0, batch("quiet", time_ms=talk.at())), acks=0), seconds=0.3)
    read_back(talk, topic, MaxWaitMs=2000, MinBytes=1)


@situation("Produce", ALL)
def without_acks_to_nowhere(talk: Talk) -> None:
    """Send acks 0 with an error, for which the connection is closed."""
    talk.expect_silence(produce((talk.topic(), 9, batch("a", time_ms=talk.at())), acks=0), seconds=1.5)


@situation("Produce", ALL)
def timeout_below_zero(talk: Talk) -> None:
    """Append with a time-out below zero, which does not matter to a single node."""
    talk.ask(produce((talk.topic(), 0, batch("a", time_ms=talk.at())), timeout_ms=-5))


# ---- fields of a batch


@situation("Produce", ALL)
def wrong_checksum(talk: Talk) -> None:
    """Send a batch with a wrong checksum; the batch of the other partition is stored."""
    topic = talk.topic(partitions=2)
    talk.ask(produce((topic, 0, batch("a", time_ms=talk.at(), crc=1)), (topic, 1, batch("b", time_ms=talk.at()))))


@situation("Produce", "3,7,8,12,13", over=("0", "1", "3"))
def other_formats(talk: Talk, magic: str) -> None:
    """Send messages of format 0 and 1, and a batch with magic 3."""
    old = old_message(b"a", int(magic), talk.at())
    talk.ask(produce((talk.topic(), 0, old if magic != "3" else batch("a", time_ms=talk.at(), magic=3))))


@situation("Produce", ALL)
def larger_than_allowed(talk: Talk) -> None:
    """Send a batch above the topic's max.message.bytes, and one below."""
    topic = talk.topic(max_message_bytes="300")
    for size in (300, 200):
        talk.ask(produce((topic, 0, batch("v" * size, time_ms=talk.at()))), f"{size}")


@situation("Produce", ALL)
def larger_than_a_segment(talk: Talk) -> None:
    """Send a batch above segment.bytes and below max.message.bytes."""
    topic = talk.topic(segment_bytes="1048576", max_message_bytes="3000000")
    talk.ask(produce((topic, 0, batch("v" * 1_048_600, time_ms=talk.at()))))


@situation("Produce", ALL, over=("no bytes", "two batches", "no records"))
def not_one_batch(talk: Talk, what: str) -> None:
    """Send no bytes, two batches, and a batch without records. (Kafka never responds to null records.)"""
    one = batch("a", time_ms=talk.at())
    empty = batch(time_ms=talk.at(), last_offset_delta=0)
    talk.ask(produce((talk.topic(), 0, {"no bytes": b"", "two batches": one * 2, "no records": empty}[what])))


LIES: dict[str, dict[str, Any]] = {
    "more records": {"count": 3},
    "fewer records": {"count": 1},
    "no records": {"count": 0},
    "last delta above": {"last_offset_delta": 5},
    "last delta below zero": {"last_offset_delta": -1},
    "deltas with a gap": {"offset_deltas": (0, 5)},
    "deltas with a gap, gzip": {"offset_deltas": (0, 5), "codec": "gzip"},
    "base offset": {"base_offset": 42},
    "shorter": {"length": 20},
    "longer": {"length": 5000},
}


@situation("Produce", "3,8,13", over=LIES)
def header_that_lies(talk: Talk, what: str) -> None:
    """Send a batch whose counts, deltas or lengths do not agree with its records."""
    topic = talk.topic()
    talk.ask(produce((topic, 0, batch("a", "b", time_ms=talk.at(), **LIES[what]))))
    read_back(talk, topic)


@situation("Produce", "9-13")
def records_that_are_none(talk: Talk) -> None:
    """Send a batch with a valid checksum over three bytes that are not records."""
    talk.ask(produce((talk.topic(), 0, batch("a", time_ms=talk.at(), payload=b"\x7f\x00\x01"))))


@situation("Produce", ALL)
def fields_the_broker_writes(talk: Talk) -> None:
    """Send a wrong maximum timestamp, which is corrected, and fetch the leader epoch that the broker sets."""
    topic = talk.topic()
    talk.at(9)
    talk.ask(produce((topic, 0, batch("a", Record(b"b", later_ms=9), time_ms=talk.at(), max_time_ms=talk.at(500)))))
    read_back(talk, topic)


@situation("Produce", ALL)
def control_batches(talk: Talk) -> None:
    """Send markers, which only the broker may write, in a transaction and outside."""
    topic, marker = talk.topic(), Record(bytes(6), b"\0\0\0\1")
    talk.ask(produce((topic, 0, batch(marker, time_ms=talk.at(), attributes=CONTROL))), "plain")
    in_one = Producer(77, 0, "tx").batch(marker, sequence=-1, time_ms=talk.at(), attributes=CONTROL)
    talk.ask(produce((topic, 0, in_one)), "transactional")


@situation("Produce", "5-13")
def log_start_offset(talk: Talk) -> None:
    """Append after DeleteRecords, and read the log start offset in the response."""
    topic = talk.topic()
    fill(talk, topic, batches=3)
    delete_records(talk, topic, 2)
    talk.ask(produce((topic, 0, batch("a", time_ms=talk.at()))))


# ---- compression


@situation("Produce", "3,6,7,9,12,13", over=("gzip", "snappy", "xerial", "lz4", "zstd"))
def codecs(talk: Talk, name: str) -> None:
    """Append a compressed batch, which is stored unchanged; zstd requires version 7."""
    topic = talk.topic()
    talk.ask(produce((topic, 0, batch("squeezed", "twice", time_ms=talk.at(), codec=name))))
    read_back(talk, topic)


@situation("Produce", "12-13", over=("gzip", "snappy", "lz4", "zstd"))
def streams_that_are_none(talk: Talk, name: str) -> None:
    """Send a batch with a valid checksum over bytes that the codec cannot decompress."""
    talk.ask(produce((talk.topic(), 0, batch("a", time_ms=talk.at(), codec=name, payload=b"no such stream"))))


@situation("Produce", "9-13")
def codec_nobody_has(talk: Talk) -> None:
    """Send the unknown codec 5."""
    talk.ask(produce((talk.topic(), 0, batch("a", time_ms=talk.at(), attributes=5))))


@situation("Produce", "3,6,7,8,13", over=("5", "6", "7"))
def codecs_nobody_has(talk: Talk, codec: str) -> None:
    """Send unknown codecs beside a good batch, twice in a request, with acks of two, and with a wrong checksum."""
    topic = talk.topic(partitions=2)
    good, bad = batch("a", time_ms=talk.at()), batch("a", time_ms=talk.at(), attributes=int(codec))
    talk.ask(produce((topic, 0, good), (topic, 1, bad)), "beside a good batch")
    talk.ask(produce((topic, 0, bad), (topic, 1, good)), "before a good batch")
    talk.ask(produce((topic, 0, bad + bad)), "two batches")
    talk.ask(produce((topic, 0, bad), acks=2), "acks of two")
    talk.ask(produce((topic, 0, bad[:-1] + b"\x7f")), "wrong checksum")
    talk.ask(produce((topic, 9, bad)), "partition that is not there")


LENGTHS = (13, 14, 48, 49, 2147483635, 2147483636, 2147483647, -1, -2147483648)


@situation("Produce", "3,8,13", over=map(str, LENGTHS))
def batch_lengths(talk: Talk, length: str) -> None:
    """Send a batch with a length that is too small, or too large to be added to, beside and after a good one."""
    topic = talk.topic(partitions=2)
    good, bad = batch("a", time_ms=talk.at()), batch("a", time_ms=talk.at(), length=int(length))
    talk.ask(produce((topic, 0, bad)), "alone")
    talk.ask(produce((topic, 0, good), (topic, 1, bad)), "beside a good batch")
    talk.ask(produce((topic, 0, good + bad)), "behind a good batch")
    talk.ask(produce((topic, 0, bad), acks=2), "acks of two")


@situation("Produce", "5,8,13", needs=TRANSACTIONS)
def log_start_in_refusals(talk: Talk) -> None:
    """Send batches that are refused for several reasons to a log that begins at offset 2."""
    topic, mine = talk.topic(max_message_bytes="300"), producer(talk)
    fill(talk, topic, batches=3)
    delete_records(talk, topic, 2)
    whole = batch("a", time_ms=talk.at())
    talk.ask(produce((topic, 0, mine.batch("a", sequence=0, time_ms=talk.at()))), "sequence 0")
    stamp = talk.at()
    for note, records in {
        "duplicate": mine.batch("a", sequence=0, time_ms=stamp),
        "gap": mine.batch("a", sequence=7, time_ms=stamp),
        "no sequence": mine.batch("a", sequence=-1, time_ms=stamp),
        "wrong checksum": whole[:-1] + b"\x7f",
        "too large": batch("v" * 400, time_ms=stamp),
        "two batches": whole + whole,
        "no bytes": b"",
        "unknown codec": batch("a", time_ms=stamp, attributes=5),
        "counts": batch("a", time_ms=stamp, count=2),
        "not records": batch("a", time_ms=stamp, payload=b"\x7f\0\1"),
        "control": batch(Record(bytes(6), b"\0\0\0\1"), time_ms=stamp, attributes=CONTROL),
        "time": batch("a", time_ms=stamp + 2 * HOUR_MS),
        "attribute": batch("a", time_ms=stamp, attributes=LOG_APPEND_TIME),
    }.items():
        talk.ask(produce((topic, 0, records)), note)
    talk.ask(produce((topic, 0, whole), acks=2), "acks of two")


@situation("Produce", "9-13", over=("gzip", "uncompressed", "producer"))
def compression_type(talk: Talk, kind: str) -> None:
    """Append to topics with several settings of compression.type, which determine the stored form."""
    topic = talk.topic(compression_type=kind)
    talk.ask(produce((topic, 0, batch("a", "b", time_ms=talk.at(), codec="none" if kind == "gzip" else "gzip"))))
    read_back(talk, topic)


# ---- configs of topics


FORMS: dict[str, dict[str, Any]] = {
    "gaps in offsets": {"offset_deltas": (0, 7)},
    "one offset twice": {"offset_deltas": (0, 0)},
    "base time of no record": {"rows": (Record(b"a", later_ms=5), Record(b"b", later_ms=3))},
    "mark of append time": {"attributes": LOG_APPEND_TIME},
    "time below -1": {"rows": (Record(b"a", later_ms=-9), Record(b"b")), "time_ms": 0},
    "time -1": {"rows": (Record(b"a", later_ms=-1), Record(b"b")), "time_ms": 0},
    "transaction without a producer": {"attributes": TRANSACTIONAL},
    "unused bit": {"attributes": 128},
}


@situation("Produce", "9-13", over=FORMS)
def recompressed(talk: Talk, form: str) -> None:
    """Send unusual records in a codec other than the topic's, and in the topic's, and fetch the stored ones."""
    how = {"time_ms": talk.at(), "rows": (Record(b"a"), Record(b"b")), **FORMS[form]}
    for kind, codecs in (("uncompressed", ("gzip", "lz4")), ("gzip", ("none", "gzip"))):
        configs = {"compression.type": kind, "message.timestamp.before.max.ms": str(2**63 - 1)}
        topic = talk.topic(kind, 1, **configs)
        for codec in codecs:
            fields = {name: value for name, value in how.items() if name != "rows"}
            talk.ask(produce((topic, 0, batch(*how["rows"], codec=codec, **fields))), f"{codec} to {kind}")
        read_back(talk, topic, kind)


@situation("Produce", ALL, over=("none", "gzip"))
def compacted_topic_needs_keys(talk: Talk, codec: str) -> None:
    """Send records without keys to a compacted topic: the batch is refused, from version 8 with the record's index."""
    topic = talk.topic(cleanup_policy="compact")
    rows = (Record(b"a", b"key"), Record(b"b"), Record(b"c", b"key"))
    talk.ask(produce((topic, 0, batch(*rows, time_ms=talk.at(), codec=codec))), "one without")
    talk.ask(produce((topic, 0, batch(rows[0], rows[2], time_ms=talk.at()))), "all with")


@situation("Produce", ALL)
def times_out_of_bounds(talk: Talk) -> None:
    """Send timestamps outside and inside the bounds; the response names only the wrong records."""
    topic = talk.topic(message_timestamp_before_max_ms=str(HOUR_MS), message_timestamp_after_max_ms=str(HOUR_MS))
    for note, later_ms in (("old", -3 * HOUR_MS), ("new", 3 * HOUR_MS)):
        rows = ("fine", Record(b"not", later_ms=later_ms))
        talk.ask(produce((topic, 0, batch(*rows, time_ms=talk.at()))), note)
    talk.ask(produce((topic, 0, batch("none", time_ms=-1))), "no time")
    talk.ask(produce((topic, 0, batch("fine", time_ms=talk.at()))), "fine")


@situation("Produce", ALL)
def default_bounds_of_time(talk: Talk) -> None:
    """Send timestamps long ago, which are accepted, and two hours ahead, which are not."""
    topic = talk.topic(retention_ms="-1")
    times = (("1970", 1000), ("ahead", talk.at(2 * HOUR_MS + 600_000)), ("zero", 0))
    for note, time_ms in times:
        talk.ask(produce((topic, 0, batch("a", time_ms=time_ms))), note)


@situation("Produce", ALL)
def log_append_time(talk: Talk) -> None:
    """Append to a topic with LogAppendTime: the response has the time, and the batch the attribute."""
    topic = talk.topic(message_timestamp_type="LogAppendTime")
    talk.ask(produce((topic, 0, batch("a", "b", time_ms=talk.at()))))
    read_back(talk, topic)


@situation("Produce", "3,8,12,13", over=("none", "gzip"))
def mark_of_log_append_time(talk: Talk, codec: str) -> None:
    """Send the attribute of LogAppendTime to a topic with CreateTime."""
    topic = talk.topic()
    talk.ask(produce((topic, 0, batch("a", time_ms=talk.at(), attributes=LOG_APPEND_TIME, codec=codec))))
    read_back(talk, topic)


# ---- idempotence


@situation("Produce", ALL)
def sequences(talk: Talk) -> None:
    """Send sequences: first, next, duplicate, with a gap, the first again, an overlap, and the next."""
    topic, mine = talk.topic(), producer(talk)
    story = (("first", 0, "ab"), ("next", 2, "c"), ("again", 2, "c"), ("gap", 9, "d"), ("the first again", 0, "ab"))
    for note, sequence, values in (*story, ("overlap", 1, "bc"), ("on", 3, "d")):
        talk.ask(produce((topic, 0, mine.batch(*values, sequence=sequence, time_ms=talk.at()))), note)


@situation("Produce", ALL)
def five_batches_are_remembered(talk: Talk) -> None:
    """Repeat the fifth last batch, which is a duplicate, and the sixth last, which is not recognized."""
    topic, mine = talk.topic(), producer(talk)
    for sequence in range(6):
        talk.quietly(
            "Produce", 12, produce((topic, 0, mine.batch(str(sequence), sequence=sequence, time_ms=talk.at())))
        )
    for note, sequence in (("fifth last", 1), ("sixth last", 0)):
        talk.ask(produce((topic, 0, mine.batch(str(sequence), sequence=sequence, time_ms=talk.at()))), note)


@situation("Produce", ALL)
def epochs(talk: Talk) -> None:
    """Begin a new epoch at sequence 7 and at 0, and send a batch of the previous epoch."""
    topic, mine = talk.topic(), producer(talk)
    for note, epoch, sequence in (("first", 3, 0), ("new, at 7", 4, 7), ("new, at 0", 4, 0), ("old", 3, 1)):
        talk.ask(produce((topic, 0, mine.batch("a", sequence=sequence, epoch=epoch, time_ms=talk.at()))), note)


@situation("Produce", ALL)
def unknown_producer(talk: Talk) -> None:
    """Begin with an unknown producer at sequence 7, which is allowed."""
    topic, strange = talk.topic(), Producer(987_654, 0)
    for sequence in (7, 8):
        talk.ask(produce((topic, 0, strange.batch("a", sequence=sequence, time_ms=talk.at()))), f"{sequence}")


@situation("Produce", ALL)
def sequence_wraps(talk: Talk) -> None:
    """Send the sequence 2^31 - 1 and then 0."""
    topic, strange = talk.topic(), Producer(987_655, 0)
    talk.ask(produce((topic, 0, strange.batch("a", "b", sequence=2**31 - 2, time_ms=talk.at()))), "the last two")
    talk.ask(produce((topic, 0, strange.batch("c", sequence=0, time_ms=talk.at()))), "0")


@situation("Produce", ALL)
def producer_without_sequence(talk: Talk) -> None:
    """Send a producer id and epoch without a sequence."""
    talk.ask(produce((talk.topic(), 0, Producer(987_656, 0).batch("a", sequence=-1, time_ms=talk.at()))))


# ---- transactions


@situation("Produce", ALL)
def transactional_batch_without_id(talk: Talk) -> None:
    """Send a transactional batch in a request without a transactional id."""
    records = Producer(987_657, 0, "tx").batch("a", sequence=0, time_ms=talk.at())
    talk.ask(produce((talk.topic(), 0, records)))


@situation("Produce", ALL, needs=TRANSACTIONS)
def partition_outside_the_transaction(talk: Talk) -> None:
    """Append to a partition outside the transaction; from version 12 on the broker adds the partition."""
    topic, mine = talk.topic(), producer(talk, talk.name("tx"))
    records = mine.batch("a", sequence=0, time_ms=talk.at())
    talk.ask(produce((topic, 0, records), transactional_id=mine.transactional_id))


@situation("Produce", ALL, needs=TRANSACTIONS)
def transactional_id_over_plain_batch(talk: Talk) -> None:
    """Send a transactional id with a batch that is not transactional."""
    topic, mine = talk.topic(), producer(talk, talk.name("tx"))
    records = mine.batch("a", sequence=0, is_transactional=False, time_ms=talk.at())
    talk.ask(produce((topic, 0, records), transactional_id=mine.transactional_id))


@situation("Produce", "9,11,12,13", needs=TRANSACTIONS)
def transaction_begins_late(talk: Talk) -> None:
    """Begin a transaction in a partition with the sequence 5."""
    topic, mine = talk.topic(), producer(talk, talk.name("tx"))
    talk.quietly("AddPartitionsToTxn", 3, add_partitions(3, mine.who, topic))
    records = mine.batch("a", sequence=5, time_ms=talk.at())
    talk.ask(produce((topic, 0, records), transactional_id=mine.transactional_id))


@situation("Produce", "9,11,12,13", needs=TRANSACTIONS)
def acks_of_two_in_a_transaction(talk: Talk) -> None:
    """Append with acks of two as a producer whose transaction is open, with another epoch, and as an unknown one."""
    topic, name = talk.topic(partitions=2), talk.name("tx")
    mine = producer(talk, name)
    talk.quietly("AddPartitionsToTxn", 3, add_partitions(3, mine.who, topic))
    rows = {
        "open": (mine, 0, 0),
        "other partition": (mine, 1, 0),
        "gap": (mine, 0, 7),
        "next epoch": (Producer(mine.id, mine.epoch + 1, name), 0, 0),
        "unknown": (Producer(mine.id + 100_000, 0, name), 0, 0),
    }
    for note, (made, partition, sequence) in rows.items():
        records = made.batch("a", sequence=sequence, time_ms=talk.at())
        talk.ask(produce((topic, partition, records), acks=2, transactional_id=name), note)


@situation("Produce", "9,11,12,13", needs=TRANSACTIONS)
def log_start_in_refusals_of_a_transaction(talk: Talk) -> None:
    """Send transactional batches that are refused to a log that begins at offset 2."""
    topic, name = talk.topic(partitions=2), talk.name("tx")
    fill(talk, topic, batches=3)
    delete_records(talk, topic, 2)
    mine = producer(talk, name)
    talk.quietly("AddPartitionsToTxn", 3, add_partitions(3, mine.who, topic))
    rows = {
        "gap at first": (mine, 0, 7),
        "first": (mine, 0, 0),
        "gap": (mine, 0, 7),
        "other partition": (mine, 1, 0),
        "next epoch": (Producer(mine.id, mine.epoch + 1, name), 0, 0),
        "unknown": (Producer(mine.id + 100_000, 0, name), 0, 0),
    }
    for note, (made, partition, sequence) in rows.items():
        records = made.batch("a", sequence=sequence, time_ms=talk.at())
        talk.ask(produce((topic, partition, records), transactional_id=name), note)
