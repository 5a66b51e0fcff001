"""Copies of topics: the end of a copy."""

import pytest

from kbroker.client.cluster import Cluster
from kbroker.client.topic_copy import Part, TopicCopier
from kbroker.common.errors import KafkaError
from tests.support.fake_broker import Body, FakeBroker

FETCH, LIST_OFFSETS, FIND_COORDINATOR, INIT_PRODUCER_ID = 1, 2, 10, 22


def test_a_copy_of_a_topic_that_was_created_again_ends(broker: FakeBroker, cluster: Cluster) -> None:
    """A copy up to the end of a former log does not wait for records that the new topic of that name never gets."""
    place = {"PartitionIndex": 0, "ErrorCode": 0}

    def fetch(version: int, body: Body) -> Body:
        part = {**place, "HighWatermark": 2, "AbortedTransactions": None, "Records": b""}
        return {"Responses": [{"Topic": "t", "Partitions": [part]}]}

    broker.handlers |= {
        FETCH: fetch,
        LIST_OFFSETS: lambda version, body: {
            "Topics": [{"Name": "t", "Partitions": [{**place, "Offset": 2, "Timestamp": -1}]}]
        },
        FIND_COORDINATOR: lambda version, body: {
            "Coordinators": [{"Key": "", "NodeId": 7, "Host": "", "Port": 1, "ErrorCode": 0, "ErrorMessage": None}]
        },
        INIT_PRODUCER_ID: lambda version, body: {"ErrorCode": 0, "ProducerId": 1, "ProducerEpoch": 0},
    }
    copier = TopicCopier(cluster, cluster, {"t": "u"})
    copier._producer.init_transactions()
    copier.parts = [Part(("t", 0), ("u", 0), 2, 9)]
    with pytest.raises(KafkaError, match="t-0: expected records up to offset 8, the log ends at offset 2"):
        list(copier.run())
