"""Records of a snapshot: those that create an image from nothing, in Kafka's order. Source: ``MetadataImage.write``."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.common.feature_versions import (
    CONTROLLERS_LEVEL,
    CORDONED_LEVEL,
    DELEGATION_TOKENS_LEVEL,
    DIRECTORIES_LEVEL,
    METADATA_VERSION,
    SCRAM_LEVEL,
    ZK_MIGRATION_LEVEL,
)
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.image_errors import UnwritableMetadataError
from kbroker.metadata.image.partition_registration import MIGRATING
from kbroker.metadata.image.record_forms import acl_body, credential_body, quota_entity_rows, token_body
from kbroker.metadata.image.registrations import BrokerRegistration
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record
from kbroker.protocol.codec import Body

_NO_BROKER = -1


def records_of(image: MetadataImage, level: int) -> Iterator[MetadataRecord]:
    """Yield the records that create the image, with their versions at a level of metadata.version.

    The first record is that level. Eligible leader replicas are absent unless their feature is enabled.

    Raises: UnwritableMetadataError, while iterating, if the level cannot represent the image.
    """
    for name, body in _bodies(image, level):
        yield metadata_record(name, body, level)


def _bodies(image: MetadataImage, level: int) -> Iterator[tuple[str, Body]]:
    yield "FeatureLevelRecord", {"Name": METADATA_VERSION, "FeatureLevel": level}
    for name, feature_level in image.features.items():
        if name != METADATA_VERSION:
            yield "FeatureLevelRecord", {"Name": name, "FeatureLevel": feature_level}
    yield from _nodes(image, level)
    yield from _topics(image, level)
    for (resource_type, resource), configs in image.configs.items():
        for key, value in configs.items():
            body = {"ResourceType": resource_type, "ResourceName": resource, "Name": key, "Value": value}
            yield "ConfigRecord", body
    for entity, quotas in image.client_quotas.items():
        for key, quota in quotas.items():
            body = {"Entity": quota_entity_rows(entity), "Key": key, "Value": quota, "Remove": False}
            yield "ClientQuotaRecord", body
    if image.next_producer_id >= 0:
        body = {"BrokerId": _NO_BROKER, "BrokerEpoch": -1, "NextProducerId": image.next_producer_id}
        yield "ProducerIdsRecord", body
    for acl_id, acl in image.acls.items():
        yield "AccessControlEntryRecord", acl_body(acl_id, acl)
    for (user, mechanism), credential in image.scram_credentials.items():
        _check(level, SCRAM_LEVEL, "SCRAM credentials")
        yield "UserScramCredentialRecord", credential_body(user, mechanism, credential)
    for token in image.delegation_tokens.values():
        _check(level, DELEGATION_TOKENS_LEVEL, "delegation tokens")
        yield "DelegationTokenRecord", token_body(token)


def _nodes(image: MetadataImage, level: int) -> Iterator[tuple[str, Body]]:
    for broker in image.brokers.values():
        _check_broker(broker, level)
        yield "RegisterBrokerRecord", broker.to_record()
    for controller in image.controllers.values():
        _check(level, CONTROLLERS_LEVEL, "registrations of controllers")
        yield "RegisterControllerRecord", controller.to_record()


def _check_broker(broker: BrokerRegistration, level: int) -> None:
    if broker.is_migrating_zk_broker:
        _check(level, ZK_MIGRATION_LEVEL, "brokers that migrate from ZooKeeper")
    if broker.directories:
        _check(level, DIRECTORIES_LEVEL, "online log directories of brokers")
    if broker.cordoned_directories is not None:
        _check(level, CORDONED_LEVEL, "cordoned log directories of brokers")


def _topics(image: MetadataImage, level: int) -> Iterator[tuple[str, Body]]:
    has_directories, has_elr = level >= DIRECTORIES_LEVEL, image.is_elr_enabled
    for topic in image.topics_by_id.values():
        yield "TopicRecord", {"Name": topic.name, "TopicId": topic.topic_id}
        for partition, registration in enumerate(topic.partitions):
            if not has_directories and any(directory != MIGRATING for directory in registration.directories):
                raise UnwritableMetadataError(level, "log directories of replicas")
            body = registration.to_record(topic.topic_id, partition, has_directories=has_directories, has_elr=has_elr)
            yield "PartitionRecord", body


def _check(level: int, needed: int, loss: str) -> None:
    if level < needed:
        raise UnwritableMetadataError(level, loss)
