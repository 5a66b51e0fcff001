"""Producer ids and transactions, from the first request to the records that readers receive, and their descriptions."""

from typing import Any

from tests.conformance.bodies import (
    Producer,
    add_partitions,
    await_state,
    commit,
    committed,
    end_transaction,
    group,
    init,
    open_transaction,
    producer,
    put,
    read_back,
)
from tests.conformance.codec import Body
from tests.conformance.run import TRANSACTIONS, situation
from tests.conformance.talk import Talk

ALL = "0-5"
STRANGE = 100_000  # added to a producer id to make an unknown one


@situation("InitProducerId", ALL)
def idempotent_ids(talk: Talk) -> None:
    """Request a new producer id twice, with two time-outs."""
    one = talk.ask(init(None), "once")
    two = talk.ask(init(None, timeout_ms=0), "again")
    talk.observe("another id", one["ProducerId"] != two["ProducerId"])


@situation("InitProducerId", "3-5")
def idempotent_id_that_is_named(talk: Talk) -> None:
    """Name a producer id and an epoch, or one of the two, without a transactional id."""
    for note, id, epoch in (("both", 5, 3), ("no epoch", 5, -1), ("no id", -1, 3)):
        talk.ask(init(None, producer_id=id, epoch=epoch), note)


@situation("InitProducerId", ALL, needs=TRANSACTIONS)
def transactional_ids(talk: Talk) -> None:
    """Initialize a transactional id twice: the producer id is the same, and the epoch is the next."""
    producer(talk, talk.name("other"))
    name = talk.name("tx")
    one, two = (talk.ask(init(name), note) for note in ("once", "again"))
    talk.observe("the same id", one["ProducerId"] == two["ProducerId"])


@situation("InitProducerId", ALL, needs=TRANSACTIONS)
def bad_inits(talk: Talk) -> None:
    """Initialize without a name, with invalid time-outs, and with the longest valid one."""
    producer(talk, talk.name("other"))
    talk.ask(init(""), "no name")
    for timeout_ms in (0, -1, 900_000, 900_001):
        talk.ask(init(talk.name("tx"), timeout_ms=timeout_ms), f"{timeout_ms} ms")


@situation("InitProducerId", "3-5", needs=TRANSACTIONS)
def named_epochs(talk: Talk) -> None:
    """Initialize with the right epoch, again, after another client, with an unknown id, and with half of the fields."""
    name = talk.name("tx")
    mine = producer(talk, name)
    own: dict[str, Any] = {"producer_id": mine.id, "epoch": mine.epoch}
    rows: list[tuple[str, Body]] = [
        ("right", init(name, **own)),
        ("tried again", init(name, **own)),
        ("another comes", init(name)),
        ("overtaken", init(name, **own)),
        ("somebody else", init(name, producer_id=mine.id + STRANGE, epoch=0)),
        ("no epoch", init(name, producer_id=mine.id)),
        ("no id", init(name, epoch=3)),
    ]
    for note, body in rows:
        talk.ask(body, note)


@situation("InitProducerId", ALL, needs=TRANSACTIONS)
def open_transaction_is_fenced(talk: Talk) -> None:
    """Initialize during an open transaction, which is aborted first; then the old producer is fenced."""
    topic = talk.topic()
    mine = open_transaction(talk, topic)
    talk.ask(init(mine.transactional_id), "first")
    await_state(talk, mine, "CompleteAbort")
    talk.ask(init(mine.transactional_id), "then")
    for version in (1, 3):
        talk.also("EndTxn", version, {**mine.who, "Committed": True}, "of the old one")
    read_back(talk, topic, committed=True)


# ---- parts of a transaction


@situation("AddPartitionsToTxn", "0-3", needs=TRANSACTIONS)
def partitions_added(talk: Talk) -> None:
    """Add partitions to a transaction, again, with unknown ones, and as unknown producers."""
    topic = talk.topic(partitions=2)
    mine = producer(talk, talk.name("tx"))
    rows: list[tuple[str, Body, Any, list[int]]] = [
        ("two", {}, topic, [0, 1]),
        ("again", {}, topic, [0]),
        ("unknown partition", {}, topic, [0, 9]),
        ("unknown topic", {}, talk.name("absent"), [0]),
        ("epoch to come", {"ProducerEpoch": mine.epoch + 1}, topic, [0]),
        ("somebody else's id", {"ProducerId": mine.id + STRANGE}, topic, [0]),
        ("unknown name", {"TransactionalId": talk.name("nobody")}, topic, [0]),  # words: ok, a recorded name
        ("no name", {"TransactionalId": ""}, topic, [0]),
    ]
    for note, fields, where, partitions in rows:
        talk.ask(add_partitions(talk.version, {**mine.who, **fields}, where, *partitions), note)


@situation("AddPartitionsToTxn", "4-5", needs=TRANSACTIONS)
def partitions_verified(talk: Talk) -> None:
    """Verify partitions as brokers do, before and after they are added, and with an unknown transactional id."""
    topic = talk.topic(partitions=2)
    mine = producer(talk, talk.name("tx"))
    stranger = {**mine.who, "TransactionalId": talk.name("nobody")}  # words: ok, a recorded name
    rows = (("not there", mine.who, [0], True), ("add", mine.who, [0], False), ("verify", mine.who, [0, 1], True))
    for note, who, partitions, only_verify in (*rows, ("unknown name", stranger, [0], True)):
        talk.ask(add_partitions(talk.version, who, topic, *partitions, only_verify=only_verify), note)


def strangers(talk: Talk, mine: Producer, epoch: int) -> list[tuple[str, Body]]:
    """Return notes and fields of requests of producers other than this one."""
    return [
        ("epoch to come", {"ProducerEpoch": epoch}),
        ("somebody else's id", {"ProducerId": mine.id + STRANGE}),
        ("unknown name", {"TransactionalId": talk.name("nobody")}),  # words: ok, a recorded name
        ("no name", {"TransactionalId": ""}),
    ]


@situation("AddOffsetsToTxn", "0-4", needs=TRANSACTIONS)
def groups_added(talk: Talk) -> None:
    """Add a group to a transaction, again, and as unknown producers."""
    name = group(talk)
    mine = producer(talk, talk.name("tx"))
    for note, fields in [("added", {}), ("again", {}), *strangers(talk, mine, mine.epoch + 1)]:
        talk.ask({**mine.who, "GroupId": name, **fields}, note)


@situation("TxnOffsetCommit", ALL, needs=TRANSACTIONS)
def offsets_in_a_transaction(talk: Talk) -> None:
    """Commit offsets in a transaction, visible after its commit, of unknown partitions and as unknown producers."""
    name, topic = group(talk), talk.topic()
    mine = producer(talk, talk.name("tx"))
    talk.quietly("AddOffsetsToTxn", 3, {**mine.who, "GroupId": name})
    body = {**commit(name, topic, 9), **mine.who}
    talk.ask(body, "right")
    talk.also("OffsetFetch", 5, committed(5, name, [(topic, [0])]), "before the end")
    (row,) = body["Topics"][0]["Partitions"]
    unknown = [
        {"Name": topic.name, "Partitions": [{**row, "PartitionIndex": 7}]},
        {"Name": talk.name("absent"), "Partitions": [row]},
    ]
    talk.ask({**body, "Topics": unknown}, "not there")
    long = [{"Name": topic.name, "Partitions": [{**row, "CommittedMetadata": "m" * 4097}]}]
    talk.ask({**body, "Topics": long}, "metadata")
    if talk.version >= 3:
        talk.ask({**body, "GenerationIdOrMemberEpoch": 5, "MemberId": "stranger"}, "a stranger")
    talk.ask({**body, "ProducerEpoch": mine.epoch + 1}, "epoch to come")
    talk.ask({**body, "ProducerId": mine.id + STRANGE}, "somebody else's id")
    end_transaction(talk, mine, is_commit=True)
    talk.also("OffsetFetch", 7, committed(7, name, [(topic, [0])], stable=True), "after the end")


@situation("EndTxn", ALL, over=("commit", "abort"), needs=TRANSACTIONS)
def ends(talk: Talk, how: str) -> None:
    """End a transaction, read it with both isolation levels, repeat the end, and send the opposite one."""
    topic = talk.topic()
    mine = open_transaction(talk, topic)
    is_commit = how == "commit"
    talk.ask({**mine.who, "Committed": is_commit}, how)
    await_state(talk, mine, "CompleteCommit" if is_commit else "CompleteAbort")
    read_back(talk, topic, "committed", committed=True)
    read_back(talk, topic, "all")
    talk.ask({**mine.who, "Committed": is_commit}, "again")
    talk.ask({**mine.who, "Committed": not is_commit}, "the other")


@situation("EndTxn", ALL, needs=TRANSACTIONS)
def bad_ends(talk: Talk) -> None:
    """End transactions as unknown producers, and without an open transaction."""
    mine = producer(talk, talk.name("tx"))
    for note, fields in [*strangers(talk, mine, mine.epoch + 5), ("commit of nothing", {})]:
        talk.ask({**mine.who, "Committed": True, **fields}, note)


@situation("EndTxn", ALL, needs=TRANSACTIONS)
def abort_of_nothing(talk: Talk) -> None:
    """Abort without an open transaction; version 5 increments the epoch."""
    talk.ask({**producer(talk, talk.name("tx")).who, "Committed": False})


@situation("WriteTxnMarkers", "1-2", needs=TRANSACTIONS)
def markers_of_a_stranger(talk: Talk) -> None:
    """Write markers of an unknown producer to a partition and to unknown ones."""
    topic = talk.topic()
    topics = [{"Name": topic.name, "PartitionIndexes": [0, 7]}, {"Name": talk.name("absent"), "PartitionIndexes": [0]}]
    marker = {"ProducerId": 987_600, "ProducerEpoch": 0, "TransactionResult": True, "CoordinatorEpoch": 0}
    talk.ask({"Markers": [{**marker, "Topics": topics}]})
    read_back(talk, topic)


# ---- descriptions


@situation("DescribeProducers", "0")
def producers_described(talk: Talk) -> None:
    """Describe producers of a partition without any, with an idempotent producer, and of unknown partitions."""
    topic = talk.topic()
    body = {"Topics": [{"Name": topic.name, "PartitionIndexes": [0, 5]}]}
    talk.ask(body, "none")
    mine = producer(talk)
    put(talk, topic, mine.batch("a", "b", sequence=0, time_ms=talk.at()))
    talk.ask(body, "one")
    absent = [{"Name": name, "PartitionIndexes": [0]} for name in (talk.name("absent"), "with space")]
    talk.ask({"Topics": absent}, "not there")
    talk.ask({"Topics": []}, "no topics")
    talk.ask({"Topics": [{"Name": topic.name}]}, "no partitions")


@situation("DescribeProducers", "0", needs=TRANSACTIONS)
def producer_in_a_transaction(talk: Talk) -> None:
    """Describe a producer at the beginning of its transaction."""
    topic = talk.topic()
    open_transaction(talk, topic)
    talk.ask({"Topics": [{"Name": topic.name, "PartitionIndexes": [0]}]})


@situation("DescribeTransactions", "0", needs=TRANSACTIONS)
def transactions_described(talk: Talk) -> None:
    """Describe empty, open, unknown and complete transactions, an empty name, and none."""
    topic = talk.topic()
    empty = producer(talk, talk.name("empty"))
    talk.ask({"TransactionalIds": [empty.transactional_id]}, "empty")
    mine = open_transaction(talk, topic)
    talk.ask({"TransactionalIds": [mine.transactional_id, talk.name("absent")]}, "open")
    end_transaction(talk, mine, is_commit=True)
    for note, names in (("complete", [mine.transactional_id]), ("no name", [""]), ("none", [])):
        talk.ask({"TransactionalIds": names}, note)


@situation("ListTransactions", "0-2", needs=TRANSACTIONS)
def transactions_listed(talk: Talk) -> None:
    """List transactions by state, by producer, by age, and by pattern."""
    mine = open_transaction(talk, talk.topic(), "open")
    producer(talk, talk.name("empty"))
    filters: list[tuple[str, int, Body]] = [
        ("all", 0, {}),
        ("open", 0, {"StateFilters": ["Ongoing"]}),
        ("unknown state", 0, {"StateFilters": ["Empty", "Nonsense"]}),
        ("producer", 0, {"ProducerIdFilters": [mine.id]}),
        ("older than an hour", 1, {"DurationFilter": 3_600_000}),
        ("pattern", 2, {"TransactionalIdPattern": f"{talk.prefix}-o.*"}),
        ("bad pattern", 2, {"TransactionalIdPattern": "["}),
    ]
    for note, since, fields in filters:
        if talk.version >= since:
            talk.ask(fields, note, only={"TransactionStates": talk.is_own("TransactionalId")})
