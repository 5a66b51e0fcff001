"""Fault rules: the requests that they match, the refusals, and the failure of a rule without a hit."""

import itertools
import threading
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from kbroker._core.clock import VirtualClock
from kbroker.common.errors import Errors
from kbroker.handlers.api_table import KafkaApis
from kbroker.protocol import codec
from kbroker.requests.context import Body, RequestContext
from kbroker.testing import responses
from kbroker.testing.faults import FaultRules
from tests.support.errors import raising
from tests.support.fixtures import fixture_of

APIS = KafkaApis()


class QuietBroker:
    """Broker without requests for rules; ``shown`` is the set of intercepted native APIs."""

    def __init__(self) -> None:
        self.apis = APIS
        self.clock = VirtualClock()
        self.shown: set[int] | None = None

    def intercept(self, interceptor: object, keys: Iterable[int] = ()) -> None:
        self.shown = None if interceptor is None else set(keys)


broker = fixture_of(QuietBroker)


@pytest.fixture
def rules(broker: QuietBroker) -> FaultRules:
    return FaultRules(broker)  # type: ignore[arg-type]


def test_rules_without_a_thread_for_delays_end(rules: FaultRules, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end after a failed begin has nothing to wait for, and the next begin succeeds."""
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start"):
            rules.begin()
    rules.end()
    rules.begin()
    rules.end()


def meets(rules: FaultRules, key: int, client_id: str = "me", topics: Iterable[str] = ()) -> int | None:
    """Return the id of the first rule that matches a request, None if none does; count the match."""
    with rules.changed:
        for fault in rules.all():
            if fault.meets(key, client_id, frozenset(topics)):
                fault.note_hit()
                return fault.id
    return None


def test_without_rules_nothing_goes_through_python(broker: QuietBroker, rules: FaultRules) -> None:
    """Native APIs are intercepted only while a rule needs them: a rule's own APIs, or all for a rule without API."""
    produce = rules.add("Produce", error="NOT_LEADER_OR_FOLLOWER")
    assert broker.shown == {0}
    anything = rules.add(delay_ms=1)
    assert broker.shown == {0, 1, 18}
    anything.remove()
    assert broker.shown == {0}
    produce.remove()
    assert broker.shown is None


@pytest.mark.parametrize("name", ["Produce", "produce", "PRODUCE", "0", 0, ("list_offsets", "Fetch")])
def test_an_api_by_name_or_key(rules: FaultRules, name: int | str | tuple[str, ...]) -> None:
    """Case and underscores of a name are ignored, and one rule may have several APIs."""
    assert rules.add(name, drop=True).keys == ({2, 1} if isinstance(name, tuple) else {0})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "got none of them"),
        ({"api": (), "drop": True}, "expected an API, got none; None is every API"),
        ({"api": "Produze", "drop": True}, "API, got 'Produze'; did you mean Produce\\?"),
        ({"api": 999, "drop": True}, "key of an API, 0 to [0-9]+, got 999"),
        ({"api": True, "drop": True}, "by its name or key, got True"),
        ({"api": "UnregisterController", "drop": True}, "does not serve UnregisterController"),
        ({"error": "NO_SUCH"}, "of an error, got 'NO_SUCH'$"),
        ({"error": "NOT_LEADER_OR_FOLOWER"}, r"got 'NOT_LEADER_OR_FOLOWER'; did you mean NOT_LEADER_OR_FOLLOWER\?"),
        ({"error": 9999}, "of an error, got 9999"),
        ({"error": True}, "of an error, got True"),
        ({"error": "NONE"}, "got NONE"),
        ({"error": 0, "delay_ms": 5}, "got NONE"),
        ({"drop": True, "disconnect": True}, "at most"),
        ({"error": 6, "drop": True}, "at most"),
        ({"delay_ms": -1, "drop": True}, "delay_ms must be"),
        ({"delay_ms": 10**12}, "delay_ms must be"),
        ({"execute": True, "error": 6}, "execute needs drop or disconnect"),
        ({"execute": True, "delay_ms": 5}, "execute needs drop or disconnect"),
        ({"drop": True, "count": 0}, "count must be"),
        ({"drop": True, "count": -2}, "count must be"),
        ({"drop": True, "skip": -1}, "skip must be"),
    ],
)
def test_a_rule_that_cannot_be(broker: QuietBroker, rules: FaultRules, arguments: dict[str, Any], text: str) -> None:
    """The rule is refused with the reason, and nothing is installed."""
    with pytest.raises(ValueError, match=text):
        rules.add(**arguments)
    assert (rules.all(), broker.shown) == ([], None)


def test_a_misspelled_argument_is_named(broker: QuietBroker, rules: FaultRules) -> None:
    """An unknown argument is refused with the one that was probably meant."""
    misspelled: dict[str, Any] = {"topics": "orders"}
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'topics'; did you mean topic\?"):
        rules.add("Produce", drop=True, **misspelled)
    assert (rules.all(), broker.shown) == ([], None)


@pytest.mark.parametrize(("name", "pattern"), [("topic", ["orders"]), ("topic", 5), ("client_id", b"app")])
def test_a_pattern_is_text(broker: QuietBroker, rules: FaultRules, name: str, pattern: Any) -> None:
    """Several topics are refused; earlier, such a rule matched nothing, and only the broker's log reported this."""
    with pytest.raises(TypeError, match=f"{name}: expected one name or pattern, got .*; add a rule for each name"):
        rules.add("Produce", drop=True, **{name: pattern})
    assert (rules.all(), broker.shown) == ([], None)


def test_the_next_n_and_no_more(rules: FaultRules) -> None:
    """A rule with count=2 matches two requests; a rule with count=-1 has no limit."""
    twice = rules.add("Fetch", drop=True, count=2)
    assert [meets(rules, 1) for _ in range(3)] == [twice.id, twice.id, None]
    assert (twice.hits, twice.left) == (2, 0)
    for_ever = rules.add("Fetch", drop=True, count=-1)
    assert [meets(rules, 1) for _ in range(5)] == [for_ever.id] * 5
    assert for_ever.left == -1


def test_skip_counts_only_what_matches(rules: FaultRules) -> None:
    """The first matching requests pass; other requests are not counted."""
    fault = rules.add("Fetch", topic="a", drop=True, skip=1)
    asked = [meets(rules, 1, topics=topics) for topics in (["b"], ["a"], ["b"], ["a"], ["a"])]
    assert asked == [None, None, None, fault.id, None]


def test_selectors_are_and(rules: FaultRules) -> None:
    """API, client and topic must all match; patterns are case-sensitive shell patterns."""
    fault = rules.add("Produce", topic="orders-*", client_id="app-?", drop=True, count=-1)
    cases = itertools.product((0, 1), ("app-1", "app-12", "APP-1"), (["orders-1"], ["orders"], []))
    met = [case for case in cases if meets(rules, *case)]
    assert met == [(0, "app-1", ["orders-1"])]
    assert fault.hits == 1


def test_the_first_rule_decides(rules: FaultRules) -> None:
    """Rules apply in the order of their addition, until each is used up."""
    first, second = rules.add("Produce", drop=True), rules.add("Produce", disconnect=True)
    assert [meets(rules, 0) for _ in range(3)] == [first.id, second.id, None]


def test_an_unmet_rule_fails_the_block(rules: FaultRules) -> None:
    """The failure names the rule and the requests that arrived instead."""
    fault = rules.add("Produce", topic="t", delay_ms=5, drop=True)
    fault.note_seen("Fetch")
    fault.note_seen("Fetch")
    with pytest.raises(
        AssertionError, match=r"fault 1 \(Produce topic='t': delay 5 ms then drop\) has 0 hits.*Fetch 2x"
    ):
        fault.__exit__(None, None, None)
    assert rules.all() == []


def test_a_failing_block_keeps_its_own_error(rules: FaultRules) -> None:
    """An exception of the block is raised instead of the failure of the rule."""
    with pytest.raises(ZeroDivisionError), rules.add("Produce", drop=True):
        raise ZeroDivisionError


def test_assert_hit_counts(rules: FaultRules) -> None:
    fault = rules.add("Produce", drop=True, count=3)
    for _ in range(2):
        meets(rules, 0)
    fault.assert_hit()
    fault.assert_hit(2)
    with pytest.raises(AssertionError, match="has 2 hits, expected 3"):
        fault.assert_hit(3)
    with pytest.raises(TimeoutError, match="2 hits of 3"):
        fault.wait(3, timeout_s=0)


# ---------------------------------------------------------------- refusals

TOPIC_ID = uuid.UUID(int=7)
PRODUCE = {
    "Acks": -1,
    "TopicData": [{"Name": "t", "TopicId": TOPIC_ID, "PartitionData": [{"Index": 3, "Records": b""}]}],
}
FETCH = {"Topics": [{"Topic": "t", "TopicId": TOPIC_ID, "Partitions": [{"Partition": 3}]}]}


def refusal(key: int, version: int, body: Body) -> Body:
    """Return the refusal of a request after encoding and decoding of both."""
    request = codec.decode_request(key, version, codec.encode_request(key, version, body))
    failure = responses.error_response_of(APIS.entries[key])
    facts = RequestContext(key, version)
    return codec.decode_response(
        key,
        version,
        codec.encode_response(key, version, failure(request, Errors.NOT_LEADER_OR_FOLLOWER, facts)),  # type: ignore[misc]
    )


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_is_refused_on_each_partition(version: int) -> None:
    """Every version has the error on the requested partition, by name or id, and no offset."""
    (topic,) = refusal(0, version, PRODUCE)["Responses"]
    (row,) = topic["PartitionResponses"]
    assert (topic["Name"], topic["TopicId"]) == (("t", uuid.UUID(int=0)) if version < 13 else ("", TOPIC_ID))
    assert (row["Index"], row["ErrorCode"], row["BaseOffset"]) == (3, 6, -1)


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_is_refused_on_each_partition(version: int) -> None:
    """Every version has the error on the requested partition, by name or id, without records and session."""
    response = refusal(1, version, FETCH)
    (topic,) = response["Responses"]
    (row,) = topic["Partitions"]
    assert (topic["Topic"], topic["TopicId"]) == (("t", uuid.UUID(int=0)) if version < 13 else ("", TOPIC_ID))
    assert (row["PartitionIndex"], row["ErrorCode"], bytes(row["Records"])) == (3, 6, b"")
    assert (response["ErrorCode"], response["SessionId"]) == (0, 0)


def test_every_api_can_be_refused() -> None:
    """Every served API has an error response, so that no fault rule silently closes the connection."""
    assert [entry.name for entry in APIS.entries.values() if responses.error_response_of(entry) is None] == []


def test_topics_are_found_wherever_they_are() -> None:
    """Topics are found by name, by id, in lists and in resources; names of configs and protocols are not topics."""

    def topics(key: int, version: int, body: Body) -> set[str]:
        decoded = codec.decode_request(key, version, codec.encode_request(key, version, body))
        return set(responses.topics_in(decoded, {TOPIC_ID: "by-id"}.get))

    assert topics(0, 9, PRODUCE) == {"t"}
    assert topics(0, 13, PRODUCE) == {"by-id"}
    assert topics(1, 12, FETCH) == {"t"}
    assert topics(1, 13, FETCH) == {"by-id"}
    assert topics(1, 13, {"Topics": [{"TopicId": uuid.UUID(int=9), "Partitions": []}]}) == set()
    assert topics(3, 12, {"Topics": [{"Name": "m"}, {"Name": None, "TopicId": TOPIC_ID}]}) == {"m", "by-id"}
    assert topics(3, 12, {"Topics": None}) == set()
    assert topics(20, 5, {"TopicNames": ["x", "y"]}) == {"x", "y"}
    new = {"Name": "n", "NumPartitions": 1, "ReplicationFactor": 1, "Configs": [{"Name": "retention.ms", "Value": "1"}]}
    assert topics(19, 7, {"Topics": [new]}) == {"n"}
    resources = [{"ResourceType": 2, "ResourceName": "r"}, {"ResourceType": 4, "ResourceName": "1"}]
    assert topics(32, 4, {"Resources": resources}) == {"r"}
    assert topics(11, 5, {"GroupId": "g", "Protocols": [{"Name": "range", "Metadata": b""}]}) == set()
