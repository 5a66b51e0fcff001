"""Client quotas of any Kafka cluster, as a library: describe, alter, resolve, compare and apply them (KIP-546).

from kbroker.client.quotas import QuotaClient, QuotaEntity

with QuotaClient("kafka:9092") as quotas:
    quotas.apply({QuotaEntity.of({"user": "alice"}): {"producer_byte_rate": 1_048_576}})
"""

from kbroker.client.async_quota_client import AsyncQuotaClient
from kbroker.client.connection import BrokerConnectionError
from kbroker.client.quota_changes import Difference
from kbroker.client.quota_client import Applied, QuotaClient
from kbroker.client.quota_file import QuotaFileError, read_quota_file
from kbroker.client.quota_resolution import ResolvedQuota
from kbroker.common.errors import Errors, KafkaError
from kbroker.common.quota_levels import LevelOutcome
from kbroker.common.quotas import QuotaEntity

__all__ = [
    "Applied",
    "AsyncQuotaClient",
    "BrokerConnectionError",
    "Difference",
    "Errors",
    "KafkaError",
    "LevelOutcome",
    "QuotaClient",
    "QuotaEntity",
    "QuotaFileError",
    "ResolvedQuota",
    "read_quota_file",
]
