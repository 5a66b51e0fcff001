"""Records that register this broker and make it the leader of every partition.

Source: ``ClusterControlManager.registerBroker``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from kbroker.common.feature_versions import DIRECTORIES_LEVEL
from kbroker.common.listeners import Listener
from kbroker.metadata.features import SUPPORTED
from kbroker.metadata.image.image import MetadataImage
from kbroker.metadata.image.partition_registration import RECOVERED, PartitionRegistration
from kbroker.metadata.image.registrations import BrokerRegistration, VersionRange, endpoints_of
from kbroker.metadata.leaders import started_records, stopped_records
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record

FENCED, UNFENCED = True, -1


def registration_records(
    image: MetadataImage,
    level: int,
    broker_epoch: int,
    node_id: int,
    listeners: Iterable[Listener],
    rack: str | None,
    directories: Sequence[uuid.UUID],
    *,
    is_alone: bool = True,
) -> list[MetadataRecord]:
    """Return the records that register and unfence the broker.

    Args: ``broker_epoch``: the offset that the first record will have; ``directories``: ids of the log folders; the
    only one has all partitions; ``is_alone``: the broker becomes the leader and only member of the ISR of every
    partition, and the only registered broker; otherwise it joins the ISR of its partitions, and leads those that have
    no leader.
    """
    broker = BrokerRegistration(
        node_id,
        broker_epoch,
        uuid.uuid4(),
        endpoints_of(listeners),
        {name: VersionRange(*levels) for name, levels in SUPPORTED.items() if levels[1]},
        rack,
        FENCED,
        False,
        False,
        tuple(directories) if level >= DIRECTORIES_LEVEL else (),
        None,
    )
    body = {"BrokerId": node_id, "BrokerEpoch": broker_epoch, "Fenced": UNFENCED}
    if is_alone:
        changes = [*_former_records(image, node_id), *_leader_records(image, level, node_id, directories)]
    else:
        changes = started_records(image, level, node_id)
    return [
        metadata_record("RegisterBrokerRecord", broker.to_record(), level),
        *changes,
        metadata_record("BrokerRegistrationChangeRecord", body, level),
    ]


def fencing_records(image: MetadataImage, level: int, node_id: int) -> list[MetadataRecord]:
    """Return the records of a clean stop, after which Kafka's controller registers the node again without a time-out.

    There are none if the node is fenced already.

    In a cluster of several nodes, they also make other nodes lead its partitions, as in a controlled shutdown.
    """
    if image.brokers[node_id].is_fenced:
        return []
    body = {"BrokerId": node_id, "BrokerEpoch": image.brokers[node_id].epoch, "Fenced": 1}
    moves = stopped_records(image, level, node_id) if len(image.brokers) > 1 else []
    return [*moves, metadata_record("BrokerRegistrationChangeRecord", body, level)]


def _former_records(image: MetadataImage, node_id: int) -> list[MetadataRecord]:
    """Return the records that unregister the other brokers of a former cluster, which have no replicas.

    New partitions could otherwise have replicas on them, with which this broker would not start again.
    """
    others = [broker for broker in image.brokers.values() if broker.broker_id != node_id]
    return [
        metadata_record("UnregisterBrokerRecord", {"BrokerId": one.broker_id, "BrokerEpoch": one.epoch})
        for one in others
    ]


def _leader_records(
    image: MetadataImage, level: int, node_id: int, directories: Sequence[uuid.UUID]
) -> list[MetadataRecord]:
    only = tuple(directories) if len(directories) == 1 and level >= DIRECTORIES_LEVEL else None
    records = []
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            changes = _leadership(partition, node_id)
            if only is not None and partition.directories != only:
                changes["Directories"] = list(only)
            if changes:
                body = {"PartitionId": index, "TopicId": topic.topic_id, **changes}
                records.append(metadata_record("PartitionChangeRecord", body, level))
    return records


def _leadership(partition: PartitionRegistration, node_id: int) -> dict[str, object]:
    """Return the changes that make the only replica the leader, none if it is; no record is lost by them."""
    changes: dict[str, object] = {}
    if partition.leader != node_id:
        changes["Leader"] = node_id
    if partition.isr != (node_id,):
        changes["Isr"] = [node_id]
    if partition.leader_recovery_state != RECOVERED:
        changes["LeaderRecoveryState"] = RECOVERED
    if partition.elr:
        changes["EligibleLeaderReplicas"] = []
    if partition.last_known_elr:
        changes["LastKnownElr"] = []
    return changes
