"""Kinds of histories: requests by their weights."""

import random
from collections.abc import Callable

from tests.support.histories import (
    administration,
    changing_topics,
    classic,
    configs,
    consumer,
    elapsed,
    entities,
    fetch_sessions,
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
from tests.support.histories.steps import BLOCKING, KILL, Step

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
    "share-log": {
        share_fetch.fetch: 10, share_fetch.acknowledge: 6, share_fetch.isolate: 1, share.describe_offsets: 1,
        log.produce: 10, log.delete_records: 1, transactions.begin: 2, log.add_partitions: 2, transactions.end: 3,
    },
    "streams": {
        streams.heartbeat: 12, groups.describe_streams: 3, streams.commit: 2, streams.fetch: 2, offsets.delete: 1,
        groups.delete: 1, groups.list_all: 1, groups.describe_classic: 1,
    },
    "offsets-topics": {
        changing_topics.create: 3, changing_topics.grow: 1, changing_topics.delete: 3, changing_topics.commit: 6,
        changing_topics.fetch: 6, changing_topics.delete_offsets: 2, transactions.begin: 2, transactions.add_offsets: 2,
        changing_topics.commit_in_transaction: 4, transactions.end: 2, groups.delete: 1, groups.list_all: 1,
    },
    "consumer-topics": {
        changing_topics.create: 3, changing_topics.grow: 2, changing_topics.delete: 2,
        changing_topics.consumer_heartbeat: 12, changing_topics.consumer_commit: 3, changing_topics.consumer_fetch: 2,
        changing_topics.delete_offsets: 1, groups.describe_consumer: 3, groups.list_all: 1, groups.delete: 1,
    },
    "share-topics": {
        changing_topics.create: 3, changing_topics.grow: 2, changing_topics.delete: 2,
        changing_topics.share_heartbeat: 8, changing_topics.share_describe: 2, changing_topics.share_alter: 2,
        changing_topics.share_delete: 2, groups.describe_share: 3, groups.list_all: 1, groups.delete: 1,
    },
    "streams-topics": {
        changing_topics.create: 3, changing_topics.grow: 2, changing_topics.delete: 2,
        changing_topics.streams_heartbeat: 12, changing_topics.streams_commit: 2, changing_topics.streams_fetch: 2,
        groups.describe_streams: 3, groups.list_all: 1, groups.delete: 1,
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
        log.configure: 2, log.delete: 1, log.create: 2,
    },
    "fetch-sessions": {
        fetch_sessions.fetch: 24, fetch_sessions.produce: 8, fetch_sessions.delete_records: 2, fetch_sessions.delete: 1,
        fetch_sessions.create: 1,
    },
    "administration": {
        administration.create: 10, administration.delete: 4, administration.create_partitions: 5,
        administration.metadata: 5, administration.describe_partitions: 3, administration.log_dirs: 1,
        administration.list_offsets: 2, administration.epoch_ends: 1, administration.describe_producers: 1,
        administration.delete_records: 1, administration.elect: 2, administration.reassign: 2,
        administration.list_reassignments: 1, administration.move: 1, configs.change: 8, configs.replace: 4,
        configs.describe: 4, configs.list_resources: 1,
    },
    "entities": {
        entities.alter_quotas: 6, entities.describe_quotas: 5, entities.create_acls: 5, entities.describe_acls: 4,
        entities.delete_acls: 3, entities.alter_scram: 5, entities.describe_scram: 2,
        administration.describe_cluster: 1, administration.update_features: 3, administration.api_versions: 1,
        administration.find_coordinator: 2, administration.list_transactions: 3,
        administration.describe_transactions: 1, transactions.begin: 2, transactions.add_offsets: 1,
        transactions.end: 1, groups.list_all: 1, offsets.commit: 1,
    },
    "elapsed": {
        elapsed.join: 6, classic.sync: 4, classic.heartbeat: 1, classic.leave: 1, elapsed.heartbeat: 6,
        offsets.commit: 1, elapsed.begin: 3, transactions.add_offsets: 3, transactions.commit_offsets: 2,
        transactions.end: 1, groups.describe_classic: 1, groups.delete: 1,
    },
    "elapsed-sessions": {
        elapsed.heartbeat: 5, share.heartbeat: 3, elapsed.streams_heartbeat: 4, consumer.commit: 2, streams.commit: 1,
        offsets.fetch: 1, groups.list_all: 1, groups.delete: 1,
    },
    "elapsed-joins": {
        elapsed.join: 9, classic.sync: 5, classic.heartbeat: 2, classic.leave: 2, groups.describe_classic: 1,
        groups.delete: 1, offsets.commit: 1,
    },
    "elapsed-locks": {share_fetch.fetch: 8, share_fetch.acknowledge: 4},
    "all": {
        migration.join: 3, classic.sync: 3, classic.heartbeat: 1, classic.leave: 1, migration.heartbeat: 4,
        share.heartbeat: 2, streams.heartbeat: 3, offsets.commit: 2, consumer.commit: 1, offsets.fetch: 2,
        consumer.fetch: 1, offsets.delete: 1, groups.delete: 2, groups.list_all: 1, groups.describe_classic: 1,
        groups.describe_consumer: 1, groups.describe_share: 1, groups.describe_streams: 1, share.describe_offsets: 1,
        share.alter_offsets: 1, share.delete_offsets: 1,
    },
}  # fmt: skip


BEGIN: dict[str, Callable[[Draw], list[Step]]] = {
    **{f"{kind}-topics": changing_topics.begin for kind in ("consumer", "share", "streams")},
    "offsets-topics": lambda draw: changing_topics.begin(draw) + transactions.begin_all(draw),
    "transactions": transactions.begin_all,
    "share-fetch": share_fetch.begin,
    "share-log": share_fetch.begin_log,
    "log": log.begin,
    "fetch-sessions": fetch_sessions.begin,
    "administration": lambda draw: [configs.begin()],
    "entities": lambda draw: [entities.begin()],
    "elapsed-sessions": elapsed.begin_sessions,
    "elapsed-locks": elapsed.begin_locks,
}  # steps before the drawn ones


LENGTH = 40  # drawn steps of a history in which no time passes


# Mixes whose settings the shared broker cannot have: bounds of the configs of groups, and a delay of first joins
OF_OTHER_TIMES = ("elapsed-sessions", "elapsed-joins", "elapsed-locks")

# Mixes whose state is in the logs. In "offsets-topics" a group whose offsets are all deleted is absent after a kill; in
# Kafka it stays until the next expiry.
KEPT = (
    *("offsets", "consumer", "share", "streams", "transactions", "log", "administration", "entities"),
    *("consumer-topics", "share-topics", "streams-topics"),
)
KILLS = 3


def history(mix: str, seed: int) -> list[Step]:
    """Return the steps of a history."""
    has_topics = mix == "consumer-topics" or (mix == "consumer" and seed % 3 == 0)
    draw = Draw(seed, has_topics=has_topics, has_own_topic=mix == "share-log")
    requests, weights = list(MIXES[mix]), list(MIXES[mix].values())
    begin = BEGIN[mix](draw) if mix in BEGIN else []
    passing = elapsed.PASSING.get(mix)
    count = passing.bursts * passing.burst if passing else LENGTH
    steps = [draw.random.choices(requests, weights)[0](draw) for _ in range(count)]
    return begin + (elapsed.put_together(passing, draw, steps) if passing else steps)


def with_kills(steps: list[Step], seed: int) -> list[Step]:
    """Return the steps of a history with kills between them, and without those whose effect is not in the logs.

    These are requests that wait for other members, and the shutdown of an application by a member of a streams group.
    """
    kept = [step for step in steps if step.api not in BLOCKING and not step.body.get("ShutdownApplication")]
    for place in sorted(random.Random(seed).sample(range(len(kept)), KILLS), reverse=True):
        kept.insert(place, KILL)
    return kept
