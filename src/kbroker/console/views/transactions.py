"""Transactions: the list, one transactional id, hanging transactions, and the changes that abort them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.client.transactions import ActiveProducer, ListedTransaction, TransactionDescription, Transactions
from kbroker.common.errors import Errors
from kbroker.common.security.acls import Operation, ResourceType
from kbroker.common.topic_names import TopicPartition
from kbroker.console.changes import Change, Difference
from kbroker.console.denied import Needed, instead
from kbroker.console.paging import part_of
from kbroker.console.requests import PageError, Query
from kbroker.console.site import Site, View, address, short_enough

PARTITIONS = 200  # maximum number of shown partitions of a transaction
LOOKED_AT = 500  # number of partitions searched at a time
DEFAULT_MINUTES = 15  # transaction.max.timeout.ms of Kafka
MAX_MINUTES = 60 * 24 * 365
ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")


class TransactionRow(NamedTuple):
    """A transactional id in the list; ``href``: empty if it is too long for an address."""

    listed: ListedTransaction
    href: str


class HangingRow(NamedTuple):
    """An open transaction that no coordinator will end. ``age_ms``: since the producer's last record."""

    topic: str
    partition: int
    producer: ActiveProducer
    age_ms: int


def transactions(site: Site, query: Query) -> View:
    """Return a page of the transactional ids that contain ``q``, optionally in one state."""
    wanted, state = query.text("q").strip(), query.text("state")
    found = site.remember("transactions", lambda: Transactions(site.cluster).list_transactions())
    kept = [
        one for one in found if wanted.lower() in one.transactional_id.lower() and (not state or one.state == state)
    ]
    part = part_of(kept, query, "transactions")
    rows = [TransactionRow(one, short_enough(address("transaction", id=one.transactional_id))) for one in part.rows]
    values = {"part": part, "rows": rows, "q": wanted, "state": state, "states": sorted({one.state for one in found})}
    return View("Transactions", "transactions.html", values)


def transaction(site: Site, query: Query) -> View:
    """Return one transactional id with its transaction."""
    found = _described(site, query.needed("id"))
    values = {
        "found": found,
        "partitions": found.partitions[:PARTITIONS],
        "more": max(0, len(found.partitions) - PARTITIONS),
        "age_ms": None if found.start_time_ms is None else max(0, site.clock.epoch_ms() - found.start_time_ms),
        "is_open": found.state not in ENDED,
    }
    return View("Transaction", "transaction.html", values)


def _described(site: Site, transactional_id: str) -> TransactionDescription:
    text = f"There is no transactional id {transactional_id[:249]!r}; it may have expired."
    needed = site.needs(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    with needed, instead(PageError(404, text, address("transactions")), Errors.TRANSACTIONAL_ID_NOT_FOUND):
        return Transactions(site.cluster).describe(transactional_id)


def hanging(site: Site, query: Query) -> View:
    """Return open transactions that no coordinator will end, in a part of the partitions, once the user searches."""
    minutes = query.integer("minutes", DEFAULT_MINUTES, 0, MAX_MINUTES)
    topic = query.text("topic").strip()
    rows: list[HangingRow] = []
    part = None
    if query.text("search"):
        places = site.remember(f"places of {topic}", lambda: _places(site, topic))
        part = part_of(places, query, "hanging", LOOKED_AT)
        rows = _hanging(site, topic, part.rows, minutes)
    return View(
        "Hanging transactions", "hanging.html", {"part": part, "rows": rows, "minutes": minutes, "topic": topic}
    )


def _places(site: Site, topic: str) -> list[TopicPartition]:
    """Return the partitions of a topic, or of all, that have a leader."""
    found = [site.cluster.topic(topic)] if topic else site.cluster.fetch_metadata(None)
    return [(one.name, each.partition) for one in found for each in one.partitions if each.leader >= 0]


def _hanging(site: Site, topic: str, places: Sequence[TopicPartition], minutes: int) -> list[HangingRow]:
    now_ms = site.clock.epoch_ms()
    with site.needs(Operation.READ, ResourceType.TOPIC, topic or "*"):
        found = Transactions(site.cluster).find_hanging(places, now_ms=now_ms, max_timeout_ms=minutes * 60_000)
    return [HangingRow(*place, producer, now_ms - producer.last_timestamp_ms) for place, producer in found]


# ---------------------------------------------------------------- changes


def terminate(site: Site, form: Query) -> Change:
    """Return the change that aborts the open transaction of a transactional id."""
    transactional_id = form.needed("id")
    found = _described(site, transactional_id)
    if found.state in ENDED:
        raise ValueError(f"expected an open transaction of {transactional_id}, found state {found.state}")
    return Change(
        f"Abort the transaction of {transactional_id}",
        [Difference(_place_name(place), "open", "aborted") for place in found.partitions]
        or [Difference("transaction", found.state, "aborted")],
        lambda: Transactions(site.cluster).force_terminate(transactional_id),
        address("transaction", id=transactional_id),
        notes=["Its producer is fenced and has to start again."],
        confirm=transactional_id,
        state=f"{found.producer_id}-{found.producer_epoch}-{found.start_time_ms}",
        needs=Needed(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id),
    )


def abort(site: Site, form: Query) -> Change:
    """Return the change that aborts a transaction in one partition, bypassing its coordinator."""
    topic, offset = form.needed("topic"), form.integer("offset", -1, 0, 2**63 - 1)
    place = topic, form.integer("partition", 0, 0, 2**31 - 1)
    client = Transactions(site.cluster)
    with site.needs(Operation.READ, ResourceType.TOPIC, topic):
        found = [one for one in client.describe_producers([place])[place] if one.start_offset == offset]
    if not found:
        raise ValueError(f"no transaction that is open in {_place_name(place)} starts at offset {offset:,}")
    (producer,) = found
    return Change(
        f"Abort the transaction of producer {producer.producer_id} in {_place_name(place)}",
        [Difference(f"records of producer {producer.producer_id} from offset {offset:,}", "open", "aborted")],
        lambda: client.abort(place, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch),
        address("hanging"),
        notes=["Use it for a hanging transaction only: the coordinator of the transaction is bypassed."],
        needs=Needed(Operation.ALTER),
    )


def _place_name(place: TopicPartition) -> str:
    return f"{place[0]}, {place[1]}"
