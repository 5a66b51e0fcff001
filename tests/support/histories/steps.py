"""Steps of a history: requests in which values that only a broker knows are references, resolved when a step is sent.

Steps hold no result of an earlier step, so that any part of a history can be replayed.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kbroker.common.errors import Errors

Body = dict[str, Any]
PARTITIONS = {"histories-a": 3, "histories-b": 1, "histories-c": 2}
TOPICS = tuple(PARTITIONS)
ABSENT = "histories-absent"
ABSENT_ID = uuid.UUID("6f0e2c1a-54a5-4f3e-9a0e-0d5f4f1f3c11")
BLOCKING = ("JoinGroup", "SyncGroup")  # may respond after a later request, and then to several members
FIRST_GENERATION = 1
PRODUCER, PRODUCER_AT = struct.Struct(">qhii"), 43  # of a batch: id, epoch, first sequence number, number of records


@dataclass
class Known:
    """Values that one broker has returned in one replay, by kind and object.

    Args:
        prefix: of the names of groups and transactional ids.
    """

    prefix: str
    topic_ids: dict[str, uuid.UUID]
    node_id: int
    values: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def name(self, label: str) -> str:
        return f"{self.prefix}-{label}"


@dataclass(frozen=True)
class Reference:
    """Value of a request that depends on earlier responses. Args: ``text``: in reports; equal for equal values."""

    text: str
    value: Callable[[Known], Any] = field(compare=False)

    def __repr__(self) -> str:
        return f"<{self.text}>"


def named(label: str) -> Reference:
    """Return the name of a group or a transactional id, new in each replay."""
    return Reference(label, lambda known: known.name(label))


NODE = Reference("node", lambda known: known.node_id)
NODE_NAME = Reference("name of the node", lambda known: str(known.node_id))


def member_id(label: str) -> Reference:
    """Return the member id that JoinGroup returned for a label; the label itself if there is none."""
    return Reference(f"id of {label}", lambda known: known.values.get(("member", label), label))


def topic_id(name: str) -> Reference:
    """Return the id of a topic; the absent name has an id that no topic has, and other names have the zero id."""
    unknown = ABSENT_ID if name == ABSENT else uuid.UUID(int=0)
    return Reference(f"id of {name}", lambda known: known.topic_ids.get(name, unknown))


def epoch_of(group: Any, member: str | None = None, change: int = 0) -> Reference:
    """Return the last epoch of a member plus a change; without a member the generation of a classic group."""
    unknown = FIRST_GENERATION if member is None else 0
    return Reference(
        f"epoch of {member} in {group} {change:+}",
        lambda known: known.values.get(("epoch", bound(group, known), member), unknown) + change,
    )


def owned(group: Any, member: str) -> Reference:
    """Return the partitions or active tasks that a member was assigned last."""
    return Reference(f"owned by {member}", lambda known: known.values.get(("owned", bound(group, known), member), []))


@dataclass(frozen=True)
class Step:
    """One request.

    Args:
        label: of the member id or the fetch session that the response gives.
        connection: its number; None: any that is free.
        settles_s: time that work of the broker after its response needs.
        settled: request whose responses are equal after that work.
    """

    api: str
    version: int
    body: Body
    label: str = ""
    connection: int | None = None
    settles_s: float = 0.0
    settled: Step | None = None

    def __str__(self) -> str:
        return f"{self.api} v{self.version} {self.body}"


KILL = Step("kill of kbroker", 0, {})  # in place of a request


def bound(value: Any, known: Known) -> Any:
    """Return a value with its references resolved."""
    if isinstance(value, Reference):
        return value.value(known)
    if isinstance(value, dict):
        return {name: bound(each, known) for name, each in value.items()}
    return [bound(each, known) for each in value] if isinstance(value, list) else value


def learn(known: Known, step: Step, body: Body, response: Body) -> None:
    """Keep the values of a response. Args: ``body``: of the request, resolved."""
    values = known.values
    if step.api == "JoinGroup":
        if response.get("MemberId") and step.label:
            values.setdefault(("member", step.label), response["MemberId"])
        if response.get("ErrorCode") == Errors.MEMBER_ID_REQUIRED:
            values["pending", response["MemberId"]] = True
        elif response.get("ErrorCode") == Errors.NONE:
            values.pop(("pending", response["MemberId"]), None)
        if response.get("GenerationId", -1) >= 0:
            values["epoch", body["GroupId"], None] = response["GenerationId"]
    elif step.api in ("Metadata", "CreateTopics"):
        ids = {row.get("Name"): row.get("TopicId") for row in response["Topics"] if row["ErrorCode"] == 0}
        known.topic_ids |= {name: topic_id for name, topic_id in ids.items() if topic_id and topic_id.int}
    elif step.api == "Produce":
        values.update(next_sequences(body, response))
    if response.get("ErrorCode") != 0:
        return
    if step.api.endswith("GroupHeartbeat"):
        group, member = body["GroupId"], body["MemberId"]
        values["epoch", group, member] = max(response["MemberEpoch"], 0)
        assigned = response.get("Assignment") or {}
        if (tasks := assigned.get("TopicPartitions", response.get("ActiveTasks"))) is not None:
            values["owned", group, member] = tasks
    elif step.api in ("InitProducerId", "EndTxn") and response.get("ProducerId", -1) >= 0:
        values["producer", body["TransactionalId"]] = response["ProducerId"], response["ProducerEpoch"]
    elif step.api == "Fetch" and step.label:
        if body["SessionEpoch"] < 0:
            values.pop(("fetch-session", step.label), None)
        else:
            values["fetch-session", step.label] = response["SessionId"], body["SessionEpoch"] + 1
    elif step.api in ("ShareFetch", "ShareAcknowledge"):
        _learn_share_session(known, body, response)


def next_sequences(body: Body, response: Body) -> dict[tuple[Any, ...], int]:
    """Return the next sequence numbers after a Produce, by producer, epoch and partition."""
    sent = {row["Index"]: row["Records"] for topic in body["TopicData"] for row in topic["PartitionData"]}
    found: dict[tuple[Any, ...], int] = {}
    for row in [row for topic in response.get("Responses", ()) for row in topic["PartitionResponses"]]:
        if row["ErrorCode"] == 0 and sent[row["Index"]]:
            producer, epoch, first, count = PRODUCER.unpack_from(sent[row["Index"]], PRODUCER_AT)
            found["sequence", producer, epoch, row["Index"]] = first + count
    return found


def _learn_share_session(known: Known, body: Body, response: Body) -> None:
    member, epoch = str(body["MemberId"]), body["ShareSessionEpoch"]
    known.values["session", member] = 0 if epoch == -1 else epoch + 1
    for topic in response.get("Responses", ()):
        for row in topic["Partitions"]:
            ranges = [(one["FirstOffset"], one["LastOffset"]) for one in row.get("AcquiredRecords") or ()]
            key = "acquired", member, topic["TopicId"], row["PartitionIndex"]
            known.values.setdefault(key, []).extend(ranges)
