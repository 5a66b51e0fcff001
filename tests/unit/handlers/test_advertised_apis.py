"""Advertised APIs: every API that the brokers of Apache Kafka 4.3.1 serve, and no other."""

from pathlib import Path

from kbroker.handlers.api_table import KafkaApis

#: APIs that Kafka's message files offer to a broker's listeners, by key: Kafka 4.3.1 advertises them if it has a
#: receiver of client metrics. The version below an unstable one (InitProducerId 6) is listed.
KAFKA = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3),
    31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2),
    40: (1, 2), 41: (1, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1),
    49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0),
    66: (0, 2), 68: (0, 1), 69: (0, 1), 71: (0, 0), 72: (0, 0), 74: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1),
    78: (1, 2), 79: (1, 2), 80: (0, 1), 81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1),
    88: (0, 0), 89: (0, 0), 90: (0, 1), 91: (0, 0), 92: (0, 0),
}  # fmt: skip

#: APIs that only the listeners of Kafka's controllers serve.
OF_CONTROLLERS = {
    52: "Vote", 53: "BeginQuorumEpoch", 54: "EndQuorumEpoch", 56: "AlterPartition", 58: "Envelope",
    59: "FetchSnapshot", 62: "BrokerRegistration", 63: "BrokerHeartbeat", 67: "AllocateProducerIds",
    70: "ControllerRegistration", 73: "AssignReplicasToDirs", 82: "UpdateRaftVoter",
}  # fmt: skip
REMOVED = {4, 5, 6, 7}

ROOT = Path(__file__).resolve().parents[3]


def test_other_versions_and_keys_are_not_found() -> None:
    """An API of a Python handler is found in its served versions only."""
    apis = KafkaApis()
    low, high = KAFKA[19]
    assert [apis.find(19, version) is not None for version in (low - 1, low, high, high + 1)] == [
        False,
        True,
        True,
        False,
    ]
    assert apis.find(52, 0) is None


def test_apis_that_are_not_served_are_named_with_a_reason() -> None:
    """docs/compatibility.md lists the APIs of controllers."""
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    section = text[text.index("### APIs of Kafka that are not served") :].split("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    assert sorted(name for row in rows[1:] for name in row.split(", ")) == sorted(OF_CONTROLLERS.values())


def test_every_key_of_kafka_is_accounted_for() -> None:
    """Each key from 0 to the highest is advertised, an API of controllers, or removed."""
    assert sorted([*KAFKA, *OF_CONTROLLERS, *REMOVED]) == list(range(max(KAFKA) + 1))
