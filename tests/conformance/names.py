"""Names in place of values that differ between runs and between brokers, and responses in a flat form.

A flat response maps the path of each value to the value: ``Topics[@-t].Partitions[0].ErrorCode``. An element of an
array is named by its identity, so that the order of the array is irrelevant, or by its position if the order is
relevant or the element has no identity.
"""

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from tests.conformance.batches import taken_apart
from tests.conformance.codec import ZERO_ID, Body

Flat = dict[str, Any]
Keep = Callable[[Body], bool]

# Fields that depend on the machine or the time, or on the broker's own decision.
NEVER_COMPARED = frozenset(
    {
        *("ThrottleTimeMs", "TotalBytes", "UsableBytes", "LastFetchTimestamp", "LastCaughtUpTimestamp"),
        *("SupportedFeatures", "FinalizedFeatures", "FinalizedFeaturesEpoch"),
    }
)
NODES = frozenset(
    {
        *("NodeId", "LeaderId", "ControllerId", "BrokerId", "ReplicaId", "PreferredReadReplica", "ReplicaNodes"),
        *("IsrNodes", "OfflineReplicas", "EligibleLeaderReplicas", "LastKnownElr"),
    }
)
TIMES = frozenset(
    {*("Timestamp", "LogAppendTimeMs", "LastTimestamp", "BaseTimestamp", "MaxTimestamp"), "TransactionStartTimeMs"}
)
MESSAGES = frozenset({"ErrorMessage", "BatchIndexErrorMessage"})  # each broker has its own wording
MEMBERS = frozenset({"MemberId", "Leader"})
HIDDEN = {"ClusterId": "<cluster>", "LogDir": "<folder>", "Documentation": "<text>"}  # if there is a value
# Arrays whose order Kafka fixes, and arrays of numbers that are sets.
IN_ORDER = frozenset({"Synonyms", "AbortedTransactions", "Records", "Batches"})
SETS = frozenset({"Partitions", "PartitionIndexes", "SubscribedTopicNames"})
# Fields that identify an element: the first one that all elements have with distinct values.
IDENTITIES = (
    *("Name", "Topic", "TopicName", "TopicId", "GroupId", "ResourceName", "TransactionalId", "PartitionIndex"),
    *("Partition", "Index", "PartitionId", "Key", "NodeId", "BrokerId", "BatchIndex", "ApiKey", "User"),
)
NEAR_MS = 3_600_000


class Names:
    """Names of one conversation.

    Args:
        prefix: prefix of every name that the script makes; it becomes "@".
        node_id, address: of the broker.
    """

    def __init__(self, prefix: str, node_id: int, address: tuple[str, int]) -> None:
        self._prefix = prefix
        self._node_id = node_id
        self._host, self._port = address
        self._topics: dict[uuid.UUID, str] = {}
        self._times: dict[int, str] = {}
        self._invented: set[str] = set()  # member ids that the script invented
        self._given: dict[str, dict[Any, str]] = {}  # values that the broker returned, in order, by kind

    # ---- learning values

    def time(self, value_ms: int, name: str) -> None:
        self._times[value_ms] = name

    def alias(self, kind: str, value: Any) -> str:
        known = self._given.setdefault(kind, {})
        return known.setdefault(value, f"<{kind} {len(known) + 1}>")

    def learn_request(self, value: Any, field: str = "") -> None:
        if isinstance(value, dict):
            for name, each in value.items():
                self.learn_request(each, name)
        elif isinstance(value, list):
            for each in value:
                self.learn_request(each, field)
        elif field in MEMBERS and isinstance(value, str) and value not in self._given.get("member", {}):
            self._invented.add(value)

    def learn_topic(self, topic_id: uuid.UUID, name: str) -> None:
        if topic_id != ZERO_ID:
            self._topics.setdefault(topic_id, name)

    def learn_response(self, api: str, value: Any) -> None:
        if isinstance(value, dict):
            topic, topic_id = value.get("Name") or value.get("Topic"), value.get("TopicId")
            if topic and isinstance(topic_id, uuid.UUID):
                self.learn_topic(topic_id, topic)
            if api == "InitProducerId" and value.get("ProducerId", -1) >= 0:
                self.alias("producer", value["ProducerId"])
            if api == "JoinGroup" and value.get("MemberId") and value["MemberId"] not in self._invented:
                self.alias("member", value["MemberId"])
            for each in value.values():
                if isinstance(each, dict | list):
                    self.learn_response(api, each)
        elif isinstance(value, list):
            for each in value:
                self.learn_response(api, each)

    # ---- comparing values

    def flat(
        self,
        api: str,
        body: Body,
        *,
        without: tuple[str, ...] = (),
        in_order: tuple[str, ...] = (),
        only: dict[str, Keep] | None = None,
    ) -> Flat:
        """Return the response as values by path.

        Args:
            without: fields that are left out besides those that are never compared.
            in_order: arrays whose order is relevant here.
            only: the elements of an array that are compared.
        """
        self.learn_response(api, body)
        plain = self._plain(body, NEVER_COMPARED | set(without), only or {})
        return dict(_paths(plain, "", IN_ORDER | set(in_order)))

    def _plain(self, body: Body, without: frozenset[str], only: dict[str, Keep]) -> Body:
        found: Body = {}
        for name, value in body.items():
            if name in without:
                continue
            if name == "Records" and (value is None or isinstance(value, bytes)):
                name, value = "Batches", taken_apart(value)
            if isinstance(value, dict):
                found[name] = self._plain(value, without, only)
            elif isinstance(value, list):
                chosen = [each for each in value if name not in only or only[name](each)]
                found[name] = [
                    self._plain(each, without, only) if isinstance(each, dict) else self._scalar(name, each)
                    for each in chosen
                ]
                if name in SETS and not any(isinstance(each, dict) for each in chosen):
                    found[name].sort()
            else:
                found[name] = self._scalar(name, value)
        return found

    def _scalar(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._scalar(name, each) for each in value]
        if (name in NODES and value == self._node_id) or (name == "ResourceName" and value == str(self._node_id)):
            return "<node>"
        if isinstance(value, uuid.UUID):
            return self._topic_id(value)
        if name in MEMBERS and value and value not in self._invented:
            return self.alias("member", value)
        if name == "Host" and value in (self._host, "localhost"):
            return "<host>"
        if name == "Port" and value == self._port:
            return "<port>"
        if name in TIMES:
            return self._times.get(value) or ("<now>" if abs(value - time.time() * 1000) < NEAR_MS else value)
        if name == "ProducerId":
            return self._given.get("producer", {}).get(value, value)
        if name == "SessionId" and value:
            return self.alias("session", value)
        if value and name in HIDDEN:
            return HIDDEN[name]
        if isinstance(value, bytes):
            value = value.decode("ascii", "backslashreplace")
        if not isinstance(value, str):
            return value
        value = self.text(value)  # first, because the prefix may contain nine digits
        return re.sub(r"\d{9,}", "<number>", value) if name in MESSAGES else value  # a time, or an id of this run

    def text(self, value: str) -> str:
        return value.replace(self._prefix, "@")

    def _topic_id(self, value: uuid.UUID) -> str:
        if value == ZERO_ID:
            return "<no id>"
        name = self._topics.get(value)
        if name is None:
            return self.alias("id", value)
        same = [known for known, other in self._topics.items() if other == name]
        return f"<id of {self.text(name)}{', ' + str(same.index(value) + 1) if same.index(value) else ''}>"


def _paths(value: Any, path: str, in_order: frozenset[str]) -> Iterator[tuple[str, Any]]:
    field = path.rpartition(".")[2]
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _paths(each, f"{path}.{name}" if path else name, in_order)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for called, each in _called(value, field in in_order):
            yield from _paths(each, f"{path}[{called}]", in_order)
    else:
        yield path, value


def _called(elements: list[Any], is_in_order: bool) -> list[tuple[str, Any]]:
    if is_in_order:
        return [(f"#{place}", each) for place, each in enumerate(elements, 1)]
    for identity in IDENTITIES:
        found = [str(each[identity]) for each in elements if isinstance(each, dict) and identity in each]
        if len(set(found)) == len(elements):
            return list(zip(found, elements, strict=True))
    ordered = sorted(elements, key=lambda each: json.dumps(each, sort_keys=True))
    return [(f"#{place}", each) for place, each in enumerate(ordered, 1)]
