"""Member of a share group over the wire, which joins, fetches and acknowledges partition 0 of a topic."""

import uuid
from typing import Any

from tests.support.broker import wait_for
from tests.support.client import Body, Client

ACCEPT, RELEASE, REJECT = 1, 2, 3


class ShareMember:
    """Member with its own connection to any broker. Raises: AssertionError for an error code."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._client = Client(bootstrap)
        self._group, self._topic = group, topic
        self._id = str(uuid.uuid4())
        self._member_epoch = self._session_epoch = 0
        self._topic_id = self._client.call("Metadata", 12, {"Topics": [{"Name": topic}]})["Topics"][0]["TopicId"]
        wait_for("the assignment", self._is_assigned, every=0.2)

    def _heartbeat(self, epoch: int, names: list[str] | None) -> Body:
        body = {"GroupId": self._group, "MemberId": self._id, "MemberEpoch": epoch, "SubscribedTopicNames": names}
        return self._client.call("ShareGroupHeartbeat", 1, body)

    def _is_assigned(self) -> bool:
        found = self._heartbeat(self._member_epoch, None if self._member_epoch else [self._topic])
        if found["ErrorCode"]:  # the coordinator is loading
            return False
        self._member_epoch = found["MemberEpoch"]
        return bool(found["Assignment"] and found["Assignment"]["TopicPartitions"])

    def _request(self, acknowledgements: list[tuple[int, int, int]]) -> dict[str, Any]:
        batches = [
            {"FirstOffset": first, "LastOffset": last, "AcknowledgeTypes": [type_]}
            for first, last, type_ in acknowledgements
        ]
        rows = [{"PartitionIndex": 0, "AcknowledgementBatches": batches}]
        return {
            "GroupId": self._group,
            "MemberId": self._id,
            "ShareSessionEpoch": self._session_epoch,
            "IsRenewAck": False,
            "Topics": [{"TopicId": self._topic_id, "Partitions": rows}],
        }

    def _respond(self, response: Body) -> Body:
        assert response["ErrorCode"] == 0, response
        self._session_epoch += 1
        rows: list[Body] = [row for topic in response["Responses"] for row in topic["Partitions"]]
        return rows[0] if rows else {"ErrorCode": 0, "AcquiredRecords": []}

    def begin_fetch(self, max_wait_ms: int = 10_000) -> None:
        """Send a ShareFetch without acknowledgements."""
        limits = {"MaxWaitMs": max_wait_ms, "MinBytes": 1, "MaxBytes": 1 << 20, "MaxRecords": 500, "BatchSize": 500}
        more = {"ShareAcquireMode": 0, "ForgottenTopicsData": []}
        self._client.begin("ShareFetch", 2, {**self._request([]), **limits, **more})

    def end_fetch(self) -> dict[tuple[int, int], int]:
        """Return the delivery count of each acquired range of offsets."""
        row = self._respond(self._client.end())
        return {(one["FirstOffset"], one["LastOffset"]): one["DeliveryCount"] for one in row["AcquiredRecords"]}

    def acquire(self, count: int) -> dict[int, int]:
        """Fetch until ``count`` records are acquired; return the delivery count of each offset."""
        found: dict[int, int] = {}

        def has_all() -> bool:
            self.begin_fetch(200)
            for (first, last), deliveries in self.end_fetch().items():
                found.update(dict.fromkeys(range(first, last + 1), deliveries))
            return len(found) >= count

        wait_for(f"{count} acquired records", has_all)
        return found

    def acknowledge(self, *batches: tuple[int, int, int]) -> None:
        """Acknowledge ranges of offsets, each with a type."""
        row = self._respond(self._client.call("ShareAcknowledge", 2, self._request(list(batches))))
        assert row["ErrorCode"] == 0, row

    def leave(self) -> None:
        """Leave the group and close the connection; the broker releases the acquired records."""
        assert self._heartbeat(-1, None)["ErrorCode"] == 0
        self._client.close()


def start_offset(bootstrap: str, group: str, topic: str) -> int:
    """Return the start offset of partition 0 in a share group."""
    request = {"Groups": [{"GroupId": group, "Topics": [{"TopicName": topic, "Partitions": [0]}]}]}
    with Client(bootstrap) as client:
        (found,) = client.call("DescribeShareGroupOffsets", 1, request)["Groups"]
    assert found["ErrorCode"] == 0, found
    offset: int = found["Topics"][0]["Partitions"][0]["StartOffset"]
    return offset
