"""Invalid and expensive heartbeats of the consumer protocol: Kafka's errors, without harm to another group."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.client.cluster import to_error
from kbroker.common.errors import Errors
from tests.support.broker import BrokerProcess, rss_bytes
from tests.support.client import Client
from tests.support.wire import Closed

HEARTBEAT, VERSION = 68, 1
MOST_MIB, MOST_WAIT_S = 100, 5.0
FLOOD, AT_ONCE = 1500, 100
CLOSED = "closed"
CLASS = "[" + "".join(chr(0x4E00 + 2 * index) for index in range(3000)) + "]"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("hostile") / "data") as running:
        with Client(running.bootstrap) as one:
            topics = [{"Name": f"t{'ab' * 100}{number}", "NumPartitions": 1} for number in range(50)]
            one.call(
                "CreateTopics", 7, {"timeoutMs": 30_000, "Topics": [{**t, "ReplicationFactor": 1} for t in topics]}
            )
        yield running


def body(group: str, member: str, epoch: int = 0, **fields: Any) -> dict[str, Any]:
    names = ["no-topic"] if epoch == 0 else None
    timeout_ms = 5000 if epoch == 0 else -1
    common = {"GroupId": group, "MemberId": member, "MemberEpoch": epoch, "RebalanceTimeoutMs": timeout_ms}
    return {**common, "SubscribedTopicNames": names, "TopicPartitions": [] if epoch == 0 else None, **fields}


def heard(client: Client, asked: dict[str, Any]) -> Errors | str:
    try:
        return to_error(client.call(HEARTBEAT, VERSION, asked)["ErrorCode"])
    except Closed:
        return CLOSED


BAD: dict[str, tuple[dict[str, Any], Errors | str | None]] = {
    "regex with a repeated class": ({"SubscribedTopicRegex": CLASS + "{1000}"}, Errors.NONE),
    "regex of deep groups": ({"SubscribedTopicRegex": "(" * 9000 + ")" * 9000}, Errors.INVALID_REGULAR_EXPRESSION),
    "regex of counted counts": ({"SubscribedTopicRegex": "((a{99}){99}){99}"}, Errors.INVALID_REGULAR_EXPRESSION),
    "regex of a megabyte": ({"SubscribedTopicRegex": "a" * (1 << 20)}, CLOSED),
    "regex that explodes elsewhere": ({"SubscribedTopicRegex": "(a*)*"}, Errors.NONE),
    "regex that costs much": ({"SubscribedTopicRegex": "t(a|b)*a(a|b){300}.*"}, Errors.NONE),
    "megabytes of topics": ({"SubscribedTopicNames": [f"{'x' * 200}{n}" for n in range(10_000)]}, None),
    "a member id of a megabyte": ({"MemberId": "m" * (1 << 20)}, CLOSED),
    "an epoch of the future": ({"MemberEpoch": 2**31 - 1, "TopicPartitions": None}, Errors.UNKNOWN_MEMBER_ID),
    "a negative time-out": ({"RebalanceTimeoutMs": -(2**31)}, Errors.NONE),
    "a wrong assignor": ({"ServerAssignor": "sticky"}, Errors.UNSUPPORTED_ASSIGNOR),
    "an empty group": ({"GroupId": ""}, Errors.INVALID_REQUEST),
}


@contextlib.contextmanager
def going_on(broker: BrokerProcess) -> Iterator[None]:
    """Check that a member of another group is served in time meanwhile, and that memory stays bounded."""
    longest, wrong = [0.0], []
    stop = threading.Event()
    with Client(broker.bootstrap) as other:
        epoch = other.call(HEARTBEAT, VERSION, body("other", "m"))["MemberEpoch"]

        def go_on() -> None:
            while not stop.wait(0.02):
                begun = time.monotonic()
                found = heard(other, body("other", "m", epoch))
                longest[0] = max(longest[0], time.monotonic() - begun)
                if found is not Errors.NONE:
                    wrong.append(found)

        thread = threading.Thread(target=go_on)
        thread.start()
        assert broker.pid is not None
        before = rss_bytes(broker.pid)
        try:
            yield
        finally:
            stop.set()
            thread.join(30)
    assert not wrong
    assert longest[0] < MOST_WAIT_S
    assert (rss_bytes(broker.pid) - before) / 2**20 < MOST_MIB


def test_others_go_on(broker: BrokerProcess) -> None:
    """Each heartbeat is refused or accepted as by Kafka, and other members of the group are served."""
    with going_on(broker):
        for number, (name, (fields, expected)) in enumerate(BAD.items()):
            with Client(broker.bootstrap) as one:
                heard(one, body(f"bad-{number}", "first"))
                found = heard(one, body(f"bad-{number}", "m", **fields))
                if expected is not None:
                    assert found == expected, name
                assert heard(one, body(f"good-{number}", "m")) == (CLOSED if found == CLOSED else Errors.NONE), name


def test_a_flood_of_members(broker: BrokerProcess) -> None:
    """1,500 members join with different topics; heartbeats with another member's id are refused by their epoch."""
    names = [f"t{'ab' * 100}{number}" for number in range(50)]
    with going_on(broker), Client(broker.bootstrap) as one:
        epochs = {}
        for begin in range(0, FLOOD, AT_ONCE):
            for number in range(begin, begin + AT_ONCE):
                topics = names[number % 50 :][:5]
                one.begin(HEARTBEAT, VERSION, body("flood", f"m-{number}", SubscribedTopicNames=topics))
            epochs.update({f"m-{number}": one.end()["MemberEpoch"] for number in range(begin, begin + AT_ONCE)})
        assert min(epochs.values()) > 0
        with Client(broker.bootstrap) as stranger:
            for epoch, expected in (
                (2**31 - 1, Errors.FENCED_MEMBER_EPOCH),
                (1, Errors.FENCED_MEMBER_EPOCH),
                (-3, Errors.INVALID_REQUEST),
                (-(2**31), Errors.INVALID_REQUEST),
                (-2, Errors.INVALID_REQUEST),
            ):
                assert heard(stranger, body("flood", "m-7", epoch)) == expected, epoch
            instance = body("flood", "m-7", -1, InstanceId="not mine")
            assert heard(stranger, instance) is Errors.UNKNOWN_MEMBER_ID
            assert heard(stranger, body("other", "m-7", epochs["m-7"])) is Errors.UNKNOWN_MEMBER_ID
        assert heard(one, body("flood", "m-7", epochs["m-7"])) is Errors.NONE
