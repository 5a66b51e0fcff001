"""Replay of a history on two brokers, which compares each response field by field except for messages."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import select
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kbroker.common.errors import Errors
from tests.conformance import codec
from tests.conformance.names import MEMBERS, MESSAGES, Flat, Keep, Names
from tests.conformance.talk import Broker
from tests.support.histories.classic import SESSION_MS
from tests.support.histories.differences import adapted, comparable
from tests.support.histories.steps import BLOCKING, KILL, TOPICS, Body, Known, Step, bound, learn
from tests.support.wire import Closed, Connection

CONNECTIONS, OTHER_CONNECTION = range(8), -1
RESPONSE_S = 4.0
QUIET_S, BLOCKING_QUIET_S = 0.004, 0.05
RECEIVE_S = 20.0
WITHOUT = (*MESSAGES, "AcknowledgeErrorMessage", "ProducerId")
# Member ids of JoinGroup and of ConsumerGroupHeartbeat
GIVEN_ID = re.compile(r"^.+-[0-9a-f]{8}-[0-9a-f-]{27}$|^[A-Za-z0-9_-]{22}$")
NEW_MEMBER, ABSENT = "<new member>", "<absent>"
# Of responses that list everything on a broker, only the elements of the history are compared
OWN = {
    "ListGroups": ("Groups", "GroupId"), "ListTransactions": ("TransactionStates", "TransactionalId"),
    "ListConfigResources": ("ConfigResources", "ResourceName"), "DescribeUserScramCredentials": ("Results", "User"),
    "DescribeAcls": ("Resources", "Acls"), "DescribeClientQuotas": ("Entries", "Entity"),
    "DescribeLogDirs": ("Topics", "Name"), "Metadata": ("Topics", "Name"),
}  # fmt: skip
_runs = itertools.count(1)


@dataclass(frozen=True)
class Differing:
    """First differing response. ``number``: of the last step that was sent; ``step``: whose response differs."""

    number: int
    step: Step
    values: dict[str, tuple[Any, Any]]  # Kafka's and kbroker's, by path

    def __str__(self) -> str:
        rows = [f"  {path}: Kafka {kafka!r}, kbroker {kbroker!r}" for path, (kafka, kbroker) in self.values.items()]
        return "\n".join([f"response to {self.step}", *rows])


class Side:
    """One broker in one replay."""

    def __init__(self, broker: Broker, prefix: str, topic_ids: dict[str, uuid.UUID]) -> None:
        self.known = Known(prefix, dict(topic_ids), broker.node_id)
        self.names = Names(prefix, broker.node_id, (broker.host, broker.port))
        for name, topic_id in topic_ids.items():
            self.names.learn_topic(topic_id, name)
        self.waiting: dict[int, tuple[Step, Body]] = {}
        self.came: dict[int, Body] = {}  # since the last step, by connection; {} if the connection was closed
        self._bootstrap = broker.bootstrap
        self._connections: dict[int, Connection] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self.waiting.clear()

    def send(self, number: int, step: Step) -> None:
        body = bound(step.body, self.known)
        self.names.learn_request(body)
        if number not in self._connections:
            self._connections[number] = Connection(self._bootstrap, RECEIVE_S)
        self.waiting[number] = step, body
        with contextlib.suppress(Closed):  # the end of the connection is received
            self._connections[number].send(codec.request(step.api, step.version, body))

    def receive(self, seconds: float) -> bool:
        """Receive the responses that come in time. Return False if none came."""
        sockets = {self._connections[number].socket: number for number in self.waiting}
        ready = select.select(list(sockets), [], [], seconds)[0]
        for each in ready:
            number = sockets[each]
            step, body = self.waiting.pop(number)
            self.came[number] = {}
            with contextlib.suppress(Closed):
                frame = self._connections[number].receive()
                self.came[number] = response = codec.response(step.api, step.version, frame)[1]
                learn(self.known, step, body, response)
            if not self.came[number]:
                self._connections.pop(number).close()
        return bool(ready)

    def ask(self, step: Step) -> Body:
        """Return the response to a request outside the history."""
        if OTHER_CONNECTION not in self._connections:
            self._connections[OTHER_CONNECTION] = Connection(self._bootstrap, RECEIVE_S)
        request = codec.request(step.api, step.version, bound(step.body, self.known))
        return codec.response(step.api, step.version, self._connections[OTHER_CONNECTION].ask(request))[1]

    def _labelled(self, value: Any, field: str = "") -> Any:
        """Return a value with labels in place of member ids, and with its arrays in the order of the contents."""
        if isinstance(value, dict):
            return {name: self._labelled(each, name) for name, each in value.items()}
        if isinstance(value, list):
            found = [self._labelled(each, field) for each in value]
            return sorted(found, key=lambda each: json.dumps(each, sort_keys=True, default=self._text))
        if field not in MEMBERS or not value:
            return value
        labels = {found: key[1] for key, found in self.known.values.items() if key[0] == "member"}
        return labels.get(value) or GIVEN_ID.sub(NEW_MEMBER, value)

    def _text(self, value: object) -> str:
        return next((name for name, topic_id in self.known.topic_ids.items() if topic_id == value), repr(value))

    def flat(self, api: str, response: Body | None) -> Flat:
        if not response:
            return {"": "no response" if response is None else "closed connection"}
        response = self._labelled(comparable(api, response))
        self.names.learn_request(response)  # labels are final names
        return self.names.flat(api, response, without=WITHOUT, only=self._own(api))

    def _own(self, api: str) -> dict[str, Keep] | None:
        """Return a predicate for elements that have the prefix or an error, as others depend on other histories."""
        if api not in OWN:
            return None
        array, field = OWN[api]
        return {array: lambda row: self.known.prefix in str(row[field]) or row.get("ErrorCode", 0) != 0}


class Pair:
    """Apache Kafka and kbroker with the same topics.

    Args:
        topic_ids: of the topics, by name.
        kill: function that kills kbroker and returns after the next start.
    """

    def __init__(
        self,
        brokers: Sequence[Broker],
        topic_ids: Sequence[dict[str, uuid.UUID]],
        kill: Callable[[], object],
    ) -> None:
        self._brokers = list(zip(brokers, topic_ids, strict=True))
        self._kill = kill

    def differing(self, steps: Sequence[Step]) -> Differing | None:
        """Replay steps with new groups; return the first difference that is not deliberate."""
        prefix = f"h{uuid.uuid4().hex[:6]}{next(_runs)}"
        with contextlib.ExitStack() as stack:
            sides = [Side(broker, prefix, ids) for broker, ids in self._brokers]
            for side in sides:
                stack.callback(side.close)
            return _Replay(self._kill, *sides).run(steps)

    def confirmed(self, steps: Sequence[Step], api: str, times: int) -> Differing | None:
        """Return the difference in the response of an API if each of some replays has one."""
        found = None
        for _ in range(times):
            found = self.differing(steps)
            if found is None or found.step.api != api:
                return None
        return found


def has_refused_offsets(response: Body) -> bool:
    """Return whether a commit of offsets refused an offset because of its metadata."""
    rows = [row for topic in response.get("Topics", ()) for row in topic.get("Partitions", ())]
    return any(row.get("ErrorCode") == Errors.OFFSET_METADATA_TOO_LARGE for row in rows)


class _Replay:
    def __init__(self, kill: Callable[[], object], kafka: Side, kbroker: Side) -> None:
        self._sides = self._kafka, self._kbroker = kafka, kbroker
        self._kill = kill

    def run(self, steps: Sequence[Step]) -> Differing | None:
        for number, step in enumerate(steps):
            if step == KILL:
                for side in self._sides:
                    side.close()
                self._kill()
                continue
            busy = self._kafka.waiting.keys() | self._kbroker.waiting.keys()
            free = [each for each in CONNECTIONS if each not in busy]
            connection = free[0] if step.connection is None and free else step.connection
            if connection not in free:
                continue
            for side in self._sides:
                side.came = {}
                side.send(connection, step)
            sent = self._kafka.waiting | self._kbroker.waiting
            self._receive(connection, step)
            for each in sorted(self._kafka.came.keys() | self._kbroker.came.keys()):
                asked, body = sent[each]
                if found := self._difference(asked, body, self._kafka.came.get(each), self._kbroker.came.get(each)):
                    return Differing(number, asked, found)
            if step.settled:
                self._settle(step.settled)
            error = self._kafka.came.get(connection, {}).get("ErrorCode")
            if error == Errors.UNKNOWN_SERVER_ERROR:
                return None  # Kafka has undone the request's change
            if (error and step.api == "JoinGroup") or has_refused_offsets(self._kafka.came.get(connection, {})):
                self._delete_what_a_refusal_left(sent[connection][1]["GroupId"])
        return None

    def _receive(self, connection: int, step: Step) -> None:
        """Receive until both brokers are quiet after the response to the step and to the same other requests."""
        is_blocking = step.api in BLOCKING
        quiet_s = (BLOCKING_QUIET_S if is_blocking else QUIET_S) + step.settles_s
        kafka, kbroker = (side.came.keys() for side in self._sides)
        last_s = begin_s = time.monotonic()
        while (now_s := time.monotonic()) < begin_s + RESPONSE_S + quiet_s:
            if any([self._kafka.receive(0.01), self._kbroker.receive(0.01)]):
                last_s = now_s
            elif now_s > last_s + quiet_s and kafka == kbroker and (is_blocking or connection in kafka):
                return

    def _settle(self, step: Step) -> None:
        """Wait until the responses to a request are equal; if they remain different, a later step will differ."""
        end_s = time.monotonic() + RESPONSE_S
        while time.monotonic() < end_s:
            theirs, ours = (side.flat(step.api, side.ask(step)) for side in self._sides)
            if theirs == ours:
                return
            time.sleep(0.01)

    def _delete_what_a_refusal_left(self, group: str) -> None:
        """Delete the group that only one broker has after a refused join or commit (docs/compatibility.md).

        Either only Kafka has an empty classic group, which is not described after a commit, or only
        kbroker has an empty group of a newer protocol, whose offsets Kafka has kept. In the second case, a classic
        group is created in Kafka, so that the offsets are deleted with it.
        """
        described = Step("DescribeGroups", 0, {"Groups": [group]})
        states = [side.ask(described)["Groups"][0]["GroupState"] for side in self._sides]
        exist = [self._has_group(side, group) for side in self._sides] if states == ["Dead", "Dead"] else []
        if exist == [False, True]:
            refused = {"GroupId": group, "SessionTimeoutMs": SESSION_MS, "MemberId": "", "ProtocolType": "consumer"}
            self._kafka.ask(Step("JoinGroup", 0, {**refused, "Protocols": []}))
        if states == ["Empty", "Dead"] or len({*exist}) == 2:
            for side in self._sides:
                side.ask(Step("DeleteGroups", 0, {"GroupsNames": [group]}))

    @staticmethod
    def _has_group(side: Side, group: str) -> bool:
        """Return whether a change would find the group: a description has only the groups in the log."""
        place = {"PartitionIndex": 0, "CommittedOffset": 0, "CommittedMetadata": ""}
        member = {"MemberId": "stranger", "GenerationIdOrMemberEpoch": (1 << 31) - 1}
        topics = [{"Name": TOPICS[0], "Partitions": [place]}]
        found = side.ask(Step("OffsetCommit", 9, {"GroupId": group, **member, "Topics": topics}))
        return bool(found["Topics"][0]["Partitions"][0]["ErrorCode"] != Errors.GROUP_ID_NOT_FOUND)

    def _difference(
        self, step: Step, request: Body, kafka: Body | None, kbroker: Body | None
    ) -> dict[str, tuple[Any, Any]]:
        theirs, ours = self._kafka.flat(step.api, kafka), self._kbroker.flat(step.api, kbroker)
        if theirs != ours and kbroker:
            expected = adapted(step.api, request, kafka, kbroker)
            theirs = ours if expected is kbroker else self._kafka.flat(step.api, expected)
        both = {path: (theirs.get(path, ABSENT), ours.get(path, ABSENT)) for path in {**theirs, **ours}}
        return {path: values for path, values in both.items() if values[0] != values[1]}
