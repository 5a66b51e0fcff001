"""TxnOffsetCommit through the codec: verification by version, codes per partition, and delayed responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.apis import api28_txn_offset_commit
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.topic_names import TopicPartition
from kbroker.coordinator.internal_topic import EndMarker
from kbroker.coordinator.transaction.add_partitions_to_txn import TransactionPartitions
from kbroker.handlers.api_table import KafkaApis
from kbroker.protocol import codec
from kbroker.requests.context import Body, RequestContext
from tests.support.fixtures import fixture_of
from tests.support.groups import Groups, MemoryTopic
from tests.support.server import make_bench

KEY = 28
PLACE = ("__consumer_offsets", 0)


@dataclass
class FakeTransactions:
    """Transaction coordinator that records its calls and returns ``error``; ``waiting`` has the delayed callbacks."""

    error: Errors = Errors.NONE
    calls: list[tuple[str, str, int, int, list[TopicPartition]]] = field(default_factory=list)
    holds_back: bool = False
    waiting: list[Callable[[Mapping[TopicPartition, Errors]], None]] = field(default_factory=list)

    @property
    def partitions(self) -> FakeTransactions:
        return self

    def verify(self, partitions: TransactionPartitions) -> Mapping[TopicPartition, Errors]:
        self.calls.append(("verify", *partitions[:3], list(partitions.places)))
        return dict.fromkeys(partitions.places, self.error)

    def add(self, partitions: TransactionPartitions, done: Callable[[Mapping[TopicPartition, Errors]], None]) -> None:
        self.calls.append(("add", *partitions[:3], list(partitions.places)))
        if self.holds_back:
            self.waiting.append(done)
        else:
            done(dict.fromkeys(partitions.places, self.error))


class Bench:
    """Handler over a coordinator on a virtual clock, a fake transaction coordinator and a topic of 2 partitions."""

    def __init__(self, **settings: Any) -> None:
        self.bench = make_bench(offset_metadata_max_bytes=10, **settings)
        clock = VirtualClock()
        self.groups = Groups(clock=clock, topic=MemoryTopic(clock, 1))
        self.transactions = FakeTransactions()
        ctx = self.bench.ctx
        ctx.clock = clock
        self.bench.serve_groups(self.groups.coordinator)
        ctx.transaction_service.started = self.transactions  # type: ignore[assignment]
        self.bench.create("t", 2)
        self.responses: list[Body] = []
        self.completed: list[Body] = []

    def complete(self, body: Body) -> None:
        self.completed.append(body)

    def close(self) -> None:
        raise AssertionError("the connection stays open")

    def send(self, version: int, *rows: tuple[str, int, int, str | None], **fields: Any) -> None:
        topics: dict[str, list[Body]] = {}
        for name, index, offset, metadata in rows:
            row = {"PartitionIndex": index, "CommittedOffset": offset, "CommittedMetadata": metadata}
            topics.setdefault(name, []).append(row)
        body: Body = {"TransactionalId": "tx", "GroupId": "g", "ProducerId": 7, "ProducerEpoch": 0}
        if version >= 3:
            body |= {"GenerationIdOrMemberEpoch": -1, "MemberId": "", "GroupInstanceId": None}
        body |= fields
        body["Topics"] = [{"Name": name, "Partitions": found} for name, found in topics.items()]
        decoded = codec.decode_request(KEY, version, codec.encode_request(KEY, version, body))
        facts = RequestContext(KEY, version, completion=self)
        try:
            response = api28_txn_offset_commit.handle(self.bench.ctx, decoded, facts)
        except KafkaError as error:
            response = api28_txn_offset_commit.failure(decoded, error.error, facts)
        if response is not None:
            self.completed.append(response)
        self.responses += [
            codec.decode_response(KEY, version, codec.encode_response(KEY, version, one)) for one in self.completed
        ]
        self.completed = []

    def ask(self, version: int, *rows: tuple[str, int, int, str | None], **fields: Any) -> list[tuple[str, int, int]]:
        """Return topic, partition and code of each row, in order."""
        self.responses = []
        self.send(version, *(rows or (("t", 0, 9, "note"),)), **fields)
        (response,) = self.responses
        return [(t["Name"], p["PartitionIndex"], p["ErrorCode"]) for t in response["Topics"] for p in t["Partitions"]]

    def code(self, version: int, **fields: Any) -> int:
        ((_, _, code),) = self.ask(version, **fields)
        return code

    def end(self, commit: bool = True) -> None:
        self.groups.coordinator.offsets.complete_transaction(0, EndMarker(7, 0, 0, commit, 0))

    def committed(self) -> dict[TopicPartition, tuple[int, int, str]]:
        found = self.groups.coordinator.offsets.fetch("g").committed.items()
        return {place: (one.offset, one.leader_epoch, one.metadata) for place, one in found}


bench = fixture_of(Bench)


@pytest.mark.parametrize("version", range(6))
def test_every_version_commits_when_the_transaction_does(bench: Bench, version: int) -> None:
    """Up to v4 the partition must be in the transaction, from v5 the commit adds it; later commits skip the check."""
    assert bench.ask(version, ("t", 0, 9, "note"), ("t", 1, 3, None)) == [("t", 0, 0), ("t", 1, 0)]
    calls = ("add" if version >= 5 else "verify", "tx", 7, 0, [PLACE])
    assert bench.transactions.calls == [calls]
    assert bench.committed() == {}
    assert bench.code(version) == 0
    assert bench.transactions.calls == [calls]
    bench.end()
    assert bench.committed() == {("t", 0): (9, -1, "note"), ("t", 1): (3, -1, "")}
    assert bench.code(version) == 0
    assert bench.transactions.calls == [calls, calls]


def test_versions_are_those_of_kafka() -> None:
    """Kafka 4.3 serves versions 0 to 5; its version 6 is not finished."""
    assert KafkaApis().ranges()[KEY] == (0, 5)


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (Errors.TRANSACTION_ABORTABLE, [48, 48, 48, 48, 120, 120]),
        (Errors.PRODUCER_FENCED, [47] * 6),
        (Errors.INVALID_PRODUCER_ID_MAPPING, [49] * 6),
        (Errors.CONCURRENT_TRANSACTIONS, [51] * 6),
        (Errors.NOT_COORDINATOR, [16] * 6),
        (Errors.COORDINATOR_LOAD_IN_PROGRESS, [15, 15, 14, 14, 14, 14]),
    ],
)
def test_what_the_transaction_coordinator_refuses(bench: Bench, version: int, error: Errors, codes: list[int]) -> None:
    """Nothing is written, and the client gets a code that its version defines."""
    bench.transactions.error = error
    assert bench.code(version) == codes[version]
    bench.end()
    assert bench.committed() == {}


def test_a_transaction_that_is_still_ending_is_waited_for(bench: Bench) -> None:
    """The response is sent when the partition has been added; no thread waits."""
    bench.transactions.holds_back = True
    bench.send(5, ("t", 0, 9, None))
    assert bench.responses == bench.completed == []
    (done,) = bench.transactions.waiting
    done({PLACE: Errors.NONE})
    (response,) = bench.completed
    assert response["Topics"][0]["Partitions"][0]["ErrorCode"] == 0
    bench.end()
    assert bench.committed() == {("t", 0): (9, -1, "")}


@pytest.mark.parametrize(("epoch", "attempts"), [(1, 1), (2, 2)])
def test_marker_of_the_transaction_before_comes_meanwhile(bench: Bench, epoch: int, attempts: int) -> None:
    """A marker of the previous transaction leaves the verification valid, one of an earlier epoch causes a new one; the
    offsets are in the new transaction.
    """
    bench.transactions.holds_back = True
    bench.send(5, ("t", 0, 9, None), ProducerEpoch=epoch)
    bench.groups.coordinator.offsets.complete_transaction(0, EndMarker(7, 1, 0, True, 2))
    for partitions in range(attempts):
        assert bench.completed == []
        bench.transactions.waiting[partitions]({PLACE: Errors.NONE})
    (response,) = bench.completed
    assert response["Topics"][0]["Partitions"][0]["ErrorCode"] == 0
    assert bench.committed() == {}
    bench.groups.coordinator.offsets.complete_transaction(0, EndMarker(7, epoch + 1, 0, True, 2))
    assert bench.committed() == {("t", 0): (9, -1, "")}


def test_questions_about_one_request_are_few(bench: Bench) -> None:
    """A request is verified at most four times, and gets a response even if markers keep arriving."""
    bench.transactions.holds_back = True
    bench.send(5, ("t", 0, 9, None), ProducerEpoch=2)
    for partitions in range(4):
        bench.groups.coordinator.offsets.complete_transaction(0, EndMarker(7, 1, 0, True, 2))
        bench.transactions.waiting[partitions]({PLACE: Errors.NONE})
    (response,) = bench.completed
    assert response["Topics"][0]["Partitions"][0]["ErrorCode"] == 48
    assert len(bench.transactions.waiting) == 4


def test_a_response_that_comes_later_is_certain(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Any failure on the coordinator's thread gives the client exactly one response."""
    bench.transactions.holds_back = True
    for _ in range(3):
        bench.send(5, ("t", 0, 9, None), ProducerEpoch=1)
    fenced, ended, broken = bench.transactions.waiting
    fenced({PLACE: Errors.PRODUCER_FENCED})
    bench.end(commit=False)  # a marker of an earlier epoch, which ends the guards of the other requests
    ended({PLACE: Errors.NONE})
    bench.transactions.waiting[-1]({PLACE: Errors.INVALID_TXN_STATE})
    broken({})
    codes = [one["Topics"][0]["Partitions"][0]["ErrorCode"] for one in bench.completed]
    assert codes == [47, 48, -1]
    assert "TxnOffsetCommit of group g failed" in caplog.text


@pytest.mark.parametrize("version", [0, 4, 5])
def test_verification_can_be_switched_off(version: int) -> None:
    """Versions up to 4 skip the verification; version 5 needs it, since it adds the partition."""
    bench = Bench(transaction_partition_verification_enable=False)
    assert bench.code(version) == 0
    assert len(bench.transactions.calls) == (1 if version >= 5 else 0)


def test_codes_of_partitions(bench: Bench) -> None:
    """Unknown partitions come first, as in Kafka; a note that is too long fails only its partition."""
    rows = [("t", 0, 1, None), ("t", 7, 1, None), ("absent", 0, 1, None), ("t", 1, 1, "m" * 11)]
    assert bench.ask(3, *rows) == [("t", 7, 3), ("t", 0, 0), ("t", 1, 12), ("absent", 0, 3)]
    bench.end()
    assert bench.committed() == {("t", 0): (1, -1, "")}
    assert bench.ask(3, ("t", 7, 1, None), ("absent", 0, 1, None)) == [("t", 7, 3), ("absent", 0, 3)]


def test_what_is_refused_as_a_whole(bench: Bench) -> None:
    """The group's code applies to all partitions that exist, even if a note is too long; others get code 3."""
    rows = [("t", 0, 1, None), ("t", 1, 1, "m" * 11), ("t", 7, 1, None)]
    refused = {"GenerationIdOrMemberEpoch": 5, "MemberId": "stranger"}
    assert bench.ask(3, *rows, **refused) == [("t", 7, 3), ("t", 0, 22), ("t", 1, 22)]
    one = bench.groups.lone()
    own = {"GenerationIdOrMemberEpoch": 1, "MemberId": one.member_id}
    assert bench.code(3, **own) == 0
    assert bench.code(3, **{**own, "GenerationIdOrMemberEpoch": 2}) == 22
    assert bench.code(3, **{**own, "MemberId": "stranger"}) == 25
    assert bench.code(3, **own, GroupInstanceId="i") == 25
    assert bench.code(3, GroupId="") == 24
    for wrong in ({"ProducerId": -1}, {"ProducerEpoch": -1}, {"ProducerEpoch": -1, "ProducerId": -1}):
        for version in (3, 5):  # in Kafka the transaction coordinator chooses the error
            for error, code in ((Errors.INVALID_REQUEST, 42), (Errors.INVALID_PRODUCER_ID_MAPPING, 49)):
                bench.transactions.error = error
                assert bench.code(version, **wrong) == code
            bench.transactions.error = Errors.PRODUCER_FENCED
            assert bench.code(version, **wrong) == 47
    assert bench.code(2) == 0


def test_an_older_epoch_is_refused_before_the_coordinator_is_asked(bench: Bench) -> None:
    assert bench.code(3, ProducerEpoch=3) == 0
    calls = len(bench.transactions.calls)
    assert bench.code(3, ProducerEpoch=2) == 47
    assert len(bench.transactions.calls) == calls


def test_the_leader_epoch_is_kept(bench: Bench) -> None:
    """From v2 the request has the leader epoch."""
    body = {"TransactionalId": "tx", "GroupId": "g", "ProducerId": 7, "ProducerEpoch": 0}
    row = {"PartitionIndex": 0, "CommittedOffset": 5, "CommittedLeaderEpoch": 4, "CommittedMetadata": "n"}
    encoded = codec.encode_request(KEY, 2, {**body, "Topics": [{"Name": "t", "Partitions": [row]}]})
    facts = RequestContext(KEY, 2, completion=bench)
    assert api28_txn_offset_commit.handle(bench.bench.ctx, codec.decode_request(KEY, 2, encoded), facts) is not None
    bench.end()
    assert bench.committed() == {("t", 0): (5, 4, "n")}


def test_without_coordinators() -> None:
    """While the broker starts, the code is retriable."""
    bench = Bench()
    bench.bench.ctx.transaction_service.started = None
    assert bench.code(3) == 15
    bench.bench.ctx.group_service.started = None
    assert bench.code(3) == 15
