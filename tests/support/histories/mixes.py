"""Kinds of histories: requests by their weights."""

from collections.abc import Callable

from tests.support.histories import (
    classic,
    consumer,
    groups,
    log,
    migration,
    offsets,
    share,
    share_fetch,
    streams,
    transactions,
)
from tests.support.histories.draw import Draw
from tests.support.histories.steps import Step

Request = Callable[[Draw], Step]
MIXES: dict[str, dict[Request, int]] = {
    "classic": {
        classic.join: 8, classic.sync: 6, classic.heartbeat: 3, classic.leave: 2, offsets.commit: 3, offsets.fetch: 2,
        offsets.delete: 1, groups.delete: 1, groups.list_all: 1, groups.describe_classic: 2,
    },
    "offsets": {
        offsets.commit: 6, offsets.fetch: 6, offsets.delete: 2, groups.delete: 1, groups.list_all: 1,
        groups.describe_classic: 1, classic.join: 1, classic.sync: 1,
    },
    "consumer": {
        consumer.heartbeat: 12, groups.describe_consumer: 3, consumer.commit: 3, consumer.fetch: 3, offsets.delete: 1,
        groups.delete: 1, groups.list_all: 1, groups.describe_classic: 1,
    },
    "share": {
        share.heartbeat: 8, groups.describe_share: 2, share.describe_offsets: 3, share.alter_offsets: 3,
        share.delete_offsets: 2, groups.delete: 1, groups.list_all: 1, groups.describe_classic: 1, offsets.fetch: 1,
        offsets.commit: 1, offsets.delete: 1,
    },
    "share-fetch": {share_fetch.fetch: 8, share_fetch.acknowledge: 6, share.describe_offsets: 1},
    "streams": {
        streams.heartbeat: 12, groups.describe_streams: 3, streams.commit: 2, streams.fetch: 2, offsets.delete: 1,
        groups.delete: 1, groups.list_all: 1, groups.describe_classic: 1,
    },
    "migration": {
        migration.join: 6, classic.sync: 5, classic.heartbeat: 2, classic.leave: 2, migration.heartbeat: 6,
        consumer.commit: 2, offsets.commit: 1, offsets.fetch: 1, groups.delete: 1, groups.list_all: 1,
        groups.describe_classic: 1, groups.describe_consumer: 2,
    },
    "transactions": {
        transactions.begin: 2, transactions.add_offsets: 4, transactions.commit_offsets: 8, transactions.end: 4,
        offsets.commit: 2, offsets.fetch: 5, offsets.delete: 2, groups.delete: 1, classic.join: 1, classic.sync: 1,
        classic.heartbeat: 1, groups.describe_classic: 1,
    },
    "log": {
        log.produce: 16, log.fetch: 6, log.list_offsets: 3, log.delete_records: 1, log.describe_producers: 1,
        log.epoch_ends: 1, log.begin_idempotence: 1, log.add_partitions: 3, transactions.begin: 3, transactions.end: 4,
    },
    "all": {
        migration.join: 3, classic.sync: 3, classic.heartbeat: 1, classic.leave: 1, migration.heartbeat: 4,
        share.heartbeat: 2, streams.heartbeat: 3, offsets.commit: 2, consumer.commit: 1, offsets.fetch: 2,
        consumer.fetch: 1, offsets.delete: 1, groups.delete: 2, groups.list_all: 1, groups.describe_classic: 1,
        groups.describe_consumer: 1, groups.describe_share: 1, groups.describe_streams: 1, share.describe_offsets: 1,
        share.alter_offsets: 1, share.delete_offsets: 1,
    },
}  # fmt: skip


BEGIN = {"share-fetch": share_fetch.begin, "log": log.begin}  # steps before the drawn ones


def history(mix: str, seed: int, length: int) -> list[Step]:
    """Return the steps of a history."""
    draw = Draw(seed, has_topics=mix == "consumer" and seed % 3 == 0)
    requests, weights = list(MIXES[mix]), list(MIXES[mix].values())
    begin = BEGIN[mix](draw) if mix in BEGIN else []
    return begin + [draw.random.choices(requests, weights)[0](draw) for _ in range(length)]
