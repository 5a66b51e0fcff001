"""Quorum of controllers in memory: the responses of its leader to an observer, as Apache Kafka builds them."""

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.client.connection import Address
from kbroker.common.errors import Errors
from kbroker.member.raft_observer import FETCH, FETCH_SNAPSHOT, NO_LEADER, RaftObserver, Send, Wait
from kbroker.metadata.image.delta import MetadataDelta
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.image.snapshot_records import records_of
from kbroker.metadata.records.batches import build_control, build_records
from kbroker.metadata.records.control_records import LeaderChange, SnapshotFooter, SnapshotHeader
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.protocol import codec
from kbroker.protocol.codec import Body
from tests.support.metadata_images import Row, read

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


class Batch(NamedTuple):
    """Batch of the leader's log."""

    base: int
    end: int
    epoch: int
    data: bytes
    rows: Sequence[Row]


class FakeQuorum:
    """Controllers with the ids 1 and 2, one of which is the leader; the test appends, commits and elects.

    Attributes:
        requests: of the observer, with the address of each.
        unreachable: addresses that do not respond.
        error: of the top level of each response.
        part_bytes: of a snapshot in a response.
        changes: fields of the partition in each response to an API, as a faulty leader sets them.
    """

    def __init__(self) -> None:
        self.addresses: dict[int, Address] = {1: ("c1", 9093), 2: ("c2", 9093)}
        self.leader_id, self.epoch = 1, 1
        self.batches: list[Batch] = []
        self.high_watermark = 0
        self.start_offset = 0
        self.snapshot: tuple[int, int, bytes] | None = None  # end offset, epoch, content
        self.requests: list[tuple[Address, int, Body]] = []
        self.unreachable: set[Address] = set()
        self.error = Errors.NONE
        self.part_bytes = 100
        self.changes: dict[int, Body] = {}
        self._append_leader_change()

    # ------------------------------------------------------------ commands of the test

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end if self.batches else self.start_offset

    def append(self, *rows: Row) -> None:
        """Append a batch of records."""
        base = self.end_offset
        data = build_records(read(rows), base, self.epoch, 1)
        self.batches.append(Batch(base, base + len(rows), self.epoch, data, rows))

    def commit(self) -> None:
        self.high_watermark = self.end_offset

    def elect(self, leader_id: int) -> None:
        """Elect a leader without the records that are not committed."""
        self.batches = [one for one in self.batches if one.end <= self.high_watermark]
        self.leader_id, self.epoch = leader_id, self.epoch + 1
        self._append_leader_change()

    def _append_leader_change(self) -> None:
        base = self.end_offset
        data = build_control([LeaderChange(self.leader_id, (1, 2), (1, 2))], base, self.epoch, 1)
        self.batches.append(Batch(base, base + 1, self.epoch, data, ()))

    def image(self) -> MetadataImage:
        """Return the image of the committed records."""
        delta = MetadataDelta(EMPTY_IMAGE)
        pending: list[MetadataRecord] | None = None
        for batch in self.committed:
            for record in read(batch.rows):
                if record.name == "BeginTransactionRecord":
                    pending = []
                elif record.name == "AbortTransactionRecord":
                    pending = None
                elif record.name == "EndTransactionRecord":
                    for one in pending or ():
                        delta.replay(one)
                    pending = None
                elif pending is not None:
                    pending.append(record)
                else:
                    delta.replay(record)
        last = self.committed[-1]
        return delta.apply(last.end - 1, last.epoch)

    @property
    def committed(self) -> list[Batch]:
        return [*self._removed, *(one for one in self.batches if one.end <= self.high_watermark)]

    _removed: Sequence[Batch] = ()

    def take_snapshot(self) -> None:
        """Write a snapshot of the committed records and remove these records from the log."""
        image = self.image()
        control = build_control([SnapshotHeader(1)], 0, image.epoch, 1)
        data = control
        records = list(records_of(image, image.level))
        data += build_records(records, 1, image.epoch, 1)
        data += build_control([SnapshotFooter()], 1 + len(records), image.epoch, 1)
        self._removed = self.committed
        self.snapshot = (self.high_watermark, image.epoch, data)
        self.batches = [one for one in self.batches if one.end > self.high_watermark]
        self.start_offset = self.high_watermark

    # ------------------------------------------------------------ the wire

    def drive(self, observer: RaftObserver, steps: int, now_ms: int = 0) -> int:
        """Serve requests of the observer; return the time after the last one."""
        for _ in range(steps):
            step = observer.next(now_ms)
            if isinstance(step, Wait):
                now_ms += step.ms
                continue
            self.requests.append((step.address, step.api_key, step.body))
            if step.address in self.unreachable:
                now_ms += 1
                observer.on_disconnect(step, "connection refused", now_ms)
                continue
            response = self.respond(step)
            version = step.versions[1]
            frame = codec.encode_response(step.api_key, version, response)
            observer.on_response(step, codec.decode_response(step.api_key, version, frame), now_ms)
        return now_ms

    def respond(self, send: Send) -> Body:
        if self.error is not Errors.NONE:
            return {"ErrorCode": int(self.error)}
        if send.body["ClusterId"] != CLUSTER_ID:
            return {"ErrorCode": int(Errors.INCONSISTENT_CLUSTER_ID)}
        (partition,) = send.body["Topics"][0]["Partitions"]
        row = self._fetch(send, partition) if send.api_key == FETCH else self._fetch_snapshot(partition)
        row["CurrentLeader"] = {"LeaderId": self.leader_id, "LeaderEpoch": self.epoch}
        row.update(self.changes.get(send.api_key, {}))
        endpoints = [
            {"NodeId": node, "Host": host, "Port": port}
            for node, (host, port) in self.addresses.items()
            if node == self.leader_id
        ]
        key = "Responses" if send.api_key == FETCH else "Topics"
        topic = {} if send.api_key == FETCH else {"Name": "__cluster_metadata"}
        return {key: [{**topic, "Partitions": [row]}], "NodeEndpoints": endpoints}

    def _check(self, send_epoch: int, address: Address | None) -> Errors:
        if send_epoch < self.epoch:
            return Errors.FENCED_LEADER_EPOCH
        if send_epoch > self.epoch:
            return Errors.UNKNOWN_LEADER_EPOCH
        if self.leader_id == NO_LEADER or address not in (None, self.addresses[self.leader_id]):
            return Errors.NOT_LEADER_OR_FOLLOWER
        return Errors.NONE

    def _fetch(self, send: Send, partition: Body) -> Body:
        row: Body = {"PartitionIndex": 0, "HighWatermark": -1, "Records": b""}
        error = self._check(partition["CurrentLeaderEpoch"], send.address)
        if error is not Errors.NONE:
            return {**row, "ErrorCode": int(error)}
        offset, epoch = partition["FetchOffset"], partition["LastFetchedEpoch"]
        if self.snapshot is not None and offset < self.start_offset:
            return {**row, "SnapshotId": {"EndOffset": self.snapshot[0], "Epoch": self.snapshot[1]}}
        diverging = self._diverging(offset, epoch)
        if diverging is not None:
            return {**row, "DivergingEpoch": {"Epoch": diverging[0], "EndOffset": diverging[1]}}
        data = b"".join(one.data for one in self.batches if one.base >= offset)
        return {**row, "HighWatermark": self.high_watermark, "Records": data}

    def _diverging(self, offset: int, epoch: int) -> tuple[int, int] | None:
        if offset == 0 or (self.snapshot is not None and (offset, epoch) == self.snapshot[:2]):
            return None
        known = [(one.epoch, one.end) for one in self.batches if one.epoch <= epoch]
        if not known:
            return (self.snapshot[1], self.snapshot[0]) if self.snapshot is not None else (0, 0)
        found, end = known[-1]
        return None if found == epoch and offset <= end else (found, end)

    def _fetch_snapshot(self, partition: Body) -> Body:
        wanted, position = partition["SnapshotId"], partition["Position"]
        row: Body = {"Index": 0, "SnapshotId": wanted, "UnalignedRecords": b""}
        error = self._check(partition["CurrentLeaderEpoch"], None)
        if error is not Errors.NONE:
            return {**row, "ErrorCode": int(error)}
        if self.snapshot is None or (wanted["EndOffset"], wanted["Epoch"]) != self.snapshot[:2]:
            return {**row, "ErrorCode": int(Errors.SNAPSHOT_NOT_FOUND)}
        data = self.snapshot[2]
        part = data[position : position + self.part_bytes]
        return {**row, "Size": len(data), "Position": position, "UnalignedRecords": part}


__all__ = ["CLUSTER_ID", "FETCH_SNAPSHOT", "Batch", "FakeQuorum"]
