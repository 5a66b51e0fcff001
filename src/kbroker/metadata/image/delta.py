"""Changes to an image by the records of the metadata log. Source: ``MetadataDelta`` and the deltas in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from kbroker.common.configs.config_resource import ConfigResourceType
from kbroker.common.feature_versions import FIRST_LEVEL, KRAFT_VERSION, LAST_STABLE_LEVEL, METADATA_VERSION, level_text
from kbroker.common.quotas import QuotaEntity
from kbroker.common.security.acls import Acl, acl_of
from kbroker.common.security.delegation_token import DelegationToken
from kbroker.metadata.image.image import EMPTY_IMAGE, MetadataImage
from kbroker.metadata.image.image_errors import MetadataReplayError, UnsupportedLevelError
from kbroker.metadata.image.mapping_delta import EntitiesDelta, MappingDelta
from kbroker.metadata.image.record_forms import credential_of, quota_entity_of, scram_key, token_of
from kbroker.metadata.image.registrations import BrokerRegistration, ControllerRegistration
from kbroker.metadata.image.topics_delta import TopicsDelta
from kbroker.metadata.records.metadata_record import MetadataRecord
from kbroker.protocol.codec import Body


class MetadataDelta:
    """Changes to an image: records are replayed, then applied to a new image.

    The reader handles the records that begin or end transactions, and leaves out the records of aborted ones. Replay
    a record only once, and no record after a refused one. Threads: one at a time.

    Args: ``image``: before the changes.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._features = MappingDelta(image.features)
        self._brokers = MappingDelta(image.brokers)
        self._controllers = MappingDelta(image.controllers)
        self.topics = TopicsDelta(image.topics, image.topics_by_id)
        self._configs = EntitiesDelta(image.configs)
        self._quotas = EntitiesDelta(image.client_quotas)
        self._next_producer_id = image.next_producer_id
        self._acls = MappingDelta(image.acls)
        self._scram = MappingDelta(image.scram_credentials)
        self._tokens = MappingDelta(image.delegation_tokens)

    @classmethod
    def between(cls, before: MetadataImage, after: MetadataImage) -> MetadataDelta:
        """Return the changes from one image to another, such as that of a snapshot."""
        delta = cls(before)
        delta._features.change_to(after.features)
        delta._brokers.change_to(after.brokers)
        delta._controllers.change_to(after.controllers)
        delta.topics.change_to(after.topics_by_id)
        delta._configs.change_to(after.configs)
        delta._quotas.change_to(after.client_quotas)
        delta._next_producer_id = after.next_producer_id
        delta._acls.change_to(after.acls)
        delta._scram.change_to(after.scram_credentials)
        delta._tokens.change_to(after.delegation_tokens)
        return delta

    def replay(self, record: MetadataRecord) -> None:
        """Add the change of a record.

        Raises: MetadataReplayError if it contradicts the image and the changes so far; the delta is then unusable.
        """
        replay = _REPLAYS.get(record.name)
        if replay is None:
            raise MetadataReplayError(f"expected a record that changes the image, found {record.name}")
        replay(self, record.body)

    def apply(self, offset: int, epoch: int) -> MetadataImage:
        """Return the image after the changes; subjects without a change are the same objects as before.

        Args: ``offset``: that of the last record; ``epoch``: its leader epoch.
        Raises: MetadataReplayError for a topic that lacks a partition below its highest one.
        """
        topics, topics_by_id = self.topics.apply()
        return MetadataImage(
            offset,
            epoch,
            self._features.apply(),
            self._brokers.apply(),
            self._controllers.apply(),
            topics,
            topics_by_id,
            self._configs.apply(),
            self._quotas.apply(),
            self._next_producer_id,
            self._acls.apply(),
            self._scram.apply(),
            self._tokens.apply(),
        )

    @property
    def changes_brokers(self) -> bool:
        """Return whether a broker is registered, changed or removed."""
        return bool(self._brokers.changes)

    @property
    def changed_configs(self) -> set[tuple[int, str]]:
        """Types and names of the resources with changed configs, including deleted topics that had configs."""
        return set(self._configs.changes)

    @property
    def changed_quotas(self) -> Mapping[QuotaEntity, Mapping[str, float | None]]:
        """Changed quotas by entity and key, None for a removed one."""
        return self._quotas.changes

    @property
    def added_acls(self) -> Mapping[UUID, Acl]:
        """Added rules by id."""
        return {acl_id: acl for acl_id, acl in self._acls.changes.items() if acl is not None}

    @property
    def removed_acls(self) -> Mapping[UUID, Acl]:
        """Removed rules by id; a rule whose id has a new rule is removed and added."""
        return {acl_id: self.image.acls[acl_id] for acl_id in self._acls.changes if acl_id in self.image.acls}

    @property
    def changed_tokens(self) -> Mapping[str, DelegationToken | None]:
        """Changed tokens by id, None for a removed one."""
        return self._tokens.changes

    @property
    def changed_features(self) -> Mapping[str, int]:
        """Changed features with their new levels, 0 for a removed one."""
        return {name: level or 0 for name, level in self._features.changes.items()}

    def _set_feature(self, body: Body) -> None:
        name, level = body["Name"], body["FeatureLevel"]
        if name == METADATA_VERSION and not FIRST_LEVEL <= level <= LAST_STABLE_LEVEL:
            first, last, found = (level_text(name, one) for one in (FIRST_LEVEL, LAST_STABLE_LEVEL, level))
            raise UnsupportedLevelError(
                f"{name}: expected a level from {first} to {last}, found {found}; use the software that wrote it, and "
                "change the level with it first"
            )
        if name != KRAFT_VERSION:  # its control records count; some versions of Kafka wrote this record, too
            self._features.changes[name] = level or None

    def _register_broker(self, body: Body) -> None:
        self._brokers.changes[body["BrokerId"]] = BrokerRegistration.from_record(body)

    def _unregister_broker(self, body: Body) -> None:
        self._brokers.changes[body["BrokerId"]] = None

    def _fence_broker(self, body: Body) -> None:
        broker = self._broker(body["Id"], body["Epoch"], "FenceBrokerRecord")
        self._brokers.changes[broker.broker_id] = broker._replace(is_fenced=True)

    def _unfence_broker(self, body: Body) -> None:
        broker = self._broker(body["Id"], body["Epoch"], "UnfenceBrokerRecord")
        self._brokers.changes[broker.broker_id] = broker._replace(is_fenced=False)

    def _change_broker(self, body: Body) -> None:
        before = self._broker(body["BrokerId"], body["BrokerEpoch"], "BrokerRegistrationChangeRecord")
        after = before.changed(body)
        if after != before:
            self._brokers.changes[before.broker_id] = after

    def _broker(self, broker_id: int, epoch: int, record: str) -> BrokerRegistration:
        broker = self._brokers.get(broker_id)
        if broker is None:
            raise MetadataReplayError(f"{record}: expected a registered broker, found broker id {broker_id}")
        if broker.epoch != epoch:
            raise MetadataReplayError(
                f"{record} of broker {broker_id}: expected its broker epoch {broker.epoch}, found {epoch}"
            )
        return broker

    def _register_controller(self, body: Body) -> None:
        self._controllers.changes[body["ControllerId"]] = ControllerRegistration.from_record(body)

    def _remove_topic(self, body: Body) -> None:
        self._configs.remove((ConfigResourceType.TOPIC, self.topics.remove(body)))

    def _set_config(self, body: Body) -> None:
        self._configs.set((body["ResourceType"], body["ResourceName"]), body["Name"], body["Value"])

    def _set_quota(self, body: Body) -> None:
        self._quotas.set(quota_entity_of(body), body["Key"], None if body.get("Remove") else body["Value"])

    def _set_producer_ids(self, body: Body) -> None:
        self._next_producer_id = body["NextProducerId"]

    def _add_acl(self, body: Body) -> None:
        self._acls.changes[body["Id"]] = acl_of(body["ResourceType"], body["ResourceName"], body["PatternType"], body)

    def _remove_acl(self, body: Body) -> None:
        acl_id = body["Id"]
        if acl_id in self.image.acls:
            self._acls.changes[acl_id] = None
        elif self._acls.changes.pop(acl_id, None) is None:
            raise MetadataReplayError(f"RemoveAccessControlEntryRecord: expected the id of a rule, found {acl_id}")

    def _set_credential(self, body: Body) -> None:
        self._scram.changes[scram_key(body)] = credential_of(body)

    def _remove_credential(self, body: Body) -> None:
        self._scram.changes[scram_key(body)] = None

    def _set_token(self, body: Body) -> None:
        self._tokens.changes[body["TokenId"]] = token_of(body)

    def _remove_token(self, body: Body) -> None:
        self._tokens.changes[body["TokenId"]] = None

    def _ignore(self, body: Body) -> None:
        """Accept a record that changes no image."""


# Functions, not bound methods: a delta that refers to itself would stay in memory until cycles are collected.
_REPLAYS: Mapping[str, Callable[[MetadataDelta, Body], object]] = {
    "RegisterBrokerRecord": MetadataDelta._register_broker,
    "UnregisterBrokerRecord": MetadataDelta._unregister_broker,
    "TopicRecord": lambda delta, body: delta.topics.create(body),
    "PartitionRecord": lambda delta, body: delta.topics.set_partition(body),
    "ConfigRecord": MetadataDelta._set_config,
    "PartitionChangeRecord": lambda delta, body: delta.topics.change_partition(body),
    "FenceBrokerRecord": MetadataDelta._fence_broker,
    "UnfenceBrokerRecord": MetadataDelta._unfence_broker,
    "RemoveTopicRecord": MetadataDelta._remove_topic,
    "DelegationTokenRecord": MetadataDelta._set_token,
    "UserScramCredentialRecord": MetadataDelta._set_credential,
    "FeatureLevelRecord": MetadataDelta._set_feature,
    "ClientQuotaRecord": MetadataDelta._set_quota,
    "ProducerIdsRecord": MetadataDelta._set_producer_ids,
    "BrokerRegistrationChangeRecord": MetadataDelta._change_broker,
    "AccessControlEntryRecord": MetadataDelta._add_acl,
    "RemoveAccessControlEntryRecord": MetadataDelta._remove_acl,
    "NoOpRecord": MetadataDelta._ignore,
    "ZkMigrationStateRecord": MetadataDelta._ignore,
    "RemoveUserScramCredentialRecord": MetadataDelta._remove_credential,
    "RemoveDelegationTokenRecord": MetadataDelta._remove_token,
    "RegisterControllerRecord": MetadataDelta._register_controller,
    "ClearElrRecord": lambda delta, body: delta.topics.clear_elr(body),
}


def image_of(records: Iterable[MetadataRecord]) -> MetadataImage:
    """Return the image of a cluster with these records only, at leader epoch 1. Raises: MetadataReplayError."""
    delta = MetadataDelta(EMPTY_IMAGE)
    count = 0
    for record in records:
        delta.replay(record)
        count += 1
    return delta.apply(count - 1, 1)
