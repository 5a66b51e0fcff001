"""Client metrics subscriptions: matching clients, combined subscriptions, and ids."""

from uuid import NAMESPACE_URL, UUID, uuid5

import pytest

from kbroker.telemetry.subscriptions import Requested, Subscription, is_reserved, requested_metrics, subscription_of

CLIENT = {
    "client_id": "orders-1",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.1",
    "client_source_address": "10.0.0.7",
    "client_source_port": "40312",
    "client_instance_id": "RpwETro3ToW61jyBphJQ4w",
}


@pytest.mark.parametrize(
    ("match", "is_matched"),
    [
        ("client_id=orders-1", True),
        ("client_id=orders", False),  # the whole text must match
        ("client_id=orders-\\d+,client_software_name=apache.*", True),
        ("client_id=orders-\\d+,client_software_name=librdkafka", False),
        ("client_source_address=10\\.0\\..*,client_source_port=40312", True),
        ("client_software_version=(?i)4\\.3\\.[0-9]", True),
        ("client_id=(?!users).*", True),  # needs a backtracking matcher
        ("client_id=(?!orders).*", False),
        ("client_id=(?<n>o)rders-1", True),
        (" client_id = orders-1 ", True),
        ("client_id=x,client_id=orders-1", True),  # the last pattern of a property applies
        ("client_instance_id=Rpw.*", True),
        ("", True),
    ],
)
def test_matching(match: str, is_matched: bool) -> None:
    """Every pattern must match; a subscription without patterns matches every client."""
    assert subscription_of("s", {"match": match}).matches(CLIENT) is is_matched


def test_a_property_that_the_client_has_not_sent() -> None:
    """An absent property matches no pattern, not even a pattern for any text."""
    assert not subscription_of("s", {"match": "client_id=.*"}).matches({"client_id": None})


def test_a_hostile_text_takes_linear_time() -> None:
    """Clients choose the texts; a backtracking matcher would need 2 to the 60th steps."""
    subscription = subscription_of("s", {"match": "client_id=(a|a)*b"})
    assert not subscription.matches({"client_id": "a" * 60})
    assert subscription.matches({"client_id": "a" * 60 + "b"})


def test_several_subscriptions() -> None:
    """A client gets the metrics of all matching subscriptions, each once, and the minimum interval."""
    found = requested_metrics(
        [
            Subscription("one", ("a", "b"), 5000, {}),
            Subscription("two", ("b", "c"), 7000, {}),
            Subscription("three", ("d",), 100, {"client_id": lambda text: False}),
        ],
        CLIENT,
    )
    assert found == Requested(["a", "b", "c"], 5000)


def test_all_metrics() -> None:
    """A subscription to all metrics replaces other names; the maximum interval is Kafka's default."""
    subscriptions = [Subscription("one", ("a",), 400_000, {}), Subscription("two", ("*", "x"), 500_000, {})]
    assert requested_metrics(subscriptions, CLIENT) == Requested(["*"], 300_000)


def test_ids() -> None:
    """Ids equal those of Apache Kafka 4.3.1: CRC-32C of the set's text and the interval, and the hash of the id."""
    uuid = uuid5(NAMESPACE_URL, "kbroker:2one")
    assert Requested(["org.apache.kafka.producer."], 1234).subscription_id(uuid) == 604667506
    assert Requested([], 300_000).subscription_id(uuid) == 1710345566


def test_reserved_ids() -> None:
    """Ids 0 and 1 are reserved, as in Kafka."""
    assert [is_reserved(UUID(int=number)) for number in range(3)] == [True, True, False]
