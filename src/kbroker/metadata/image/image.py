"""State of the cluster's metadata at an offset of the metadata log. Source: ``MetadataImage`` and the images in it."""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from kbroker.common.feature_versions import ELIGIBLE_LEADER_REPLICAS, LAST_STABLE_LEVEL, METADATA_VERSION
from kbroker.common.quotas import QuotaEntity
from kbroker.common.security.acls import Acl
from kbroker.common.security.delegation_token import DelegationToken
from kbroker.common.security.scram import Credential
from kbroker.metadata.image.partition_registration import PartitionRegistration
from kbroker.metadata.image.registrations import BrokerRegistration, ControllerRegistration

NO_PRODUCER_ID = -1


class TopicImage(NamedTuple):
    """A topic. ``partitions``: by partition number."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionRegistration, ...]


class MetadataImage(NamedTuple):
    """State of the cluster after the record at ``offset``. Its mappings are never changed, only replaced.

    Attributes:
        offset: offset of the last record in it, -1 before the first record; ``epoch``: its leader epoch.
        features: finalized levels, metadata.version included; level 0 is absent, as is kraft.version, which has control
            records.
        configs: by resource type (2 topic, 4 broker, 16 client metrics, 32 group) and name, "" for the default.
        client_quotas: keys include those of shadow quotas.
        next_producer_id: the first id that no block contains, NO_PRODUCER_ID before the first block.
        scram_credentials: by user and mechanism name.
    """

    offset: int
    epoch: int
    features: Mapping[str, int]
    brokers: Mapping[int, BrokerRegistration]
    controllers: Mapping[int, ControllerRegistration]
    topics: Mapping[str, TopicImage]
    topics_by_id: Mapping[UUID, TopicImage]
    configs: Mapping[tuple[int, str], Mapping[str, str]]
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]]
    next_producer_id: int
    acls: Mapping[UUID, Acl]
    scram_credentials: Mapping[tuple[str, str], Credential]
    delegation_tokens: Mapping[str, DelegationToken]

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Return the leader epoch of a partition, 0 for a partition that does not exist yet."""
        found = self.topics.get(topic)
        if found is None or partition >= len(found.partitions):
            return 0
        return found.partitions[partition].leader_epoch

    @property
    def level(self) -> int:
        """Finalized level of metadata.version, which determines the versions of records."""
        return self.features.get(METADATA_VERSION, LAST_STABLE_LEVEL)

    @property
    def is_elr_enabled(self) -> bool:
        """True if eligible leader replicas (KIP-966) are enabled."""
        return self.features.get(ELIGIBLE_LEADER_REPLICAS, 0) >= 1


EMPTY_IMAGE = MetadataImage(-1, -1, {}, {}, {}, {}, {}, {}, {}, NO_PRODUCER_ID, {}, {}, {})
