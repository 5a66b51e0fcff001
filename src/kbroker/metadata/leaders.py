"""Leaders, ISR and reassignments of partitions on several nodes, as records of the metadata log.

The nodes share their logs, so a replica of a live node has caught up as soon as its partition has a leader.
Source: ``PartitionChangeBuilder``, ``ReplicationControlManager``.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Sequence

from kbroker.common.errors import Errors, KafkaError
from kbroker.common.feature_versions import DIRECTORIES_LEVEL
from kbroker.metadata.image.image import MetadataImage, TopicImage
from kbroker.metadata.image.partition_registration import NO_LEADER, UNASSIGNED, PartitionRegistration
from kbroker.metadata.records.metadata_record import MetadataRecord, metadata_record

NOT_NEEDED = "Leader election not needed for topic partition."


def live_ids(image: MetadataImage) -> set[int]:
    """Return the ids of the registered, unfenced nodes."""
    return {node_id for node_id, broker in image.brokers.items() if not broker.is_fenced}


def started_records(image: MetadataImage, level: int, node_id: int) -> list[MetadataRecord]:
    """Return the records by which a started node joins the ISR, and leads partitions without a leader."""
    return _settled_records(image, level, live_ids(image) | {node_id}, node_id)


def stopped_records(image: MetadataImage, level: int, node_id: int) -> list[MetadataRecord]:
    """Return the records by which a stopped node leaves the ISR, and other nodes lead its partitions."""
    return _settled_records(image, level, live_ids(image) - {node_id}, node_id)


def _settled_records(image: MetadataImage, level: int, live: Collection[int], node_id: int) -> list[MetadataRecord]:
    records = []
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if node_id in partition.replicas:
                records += change_records(topic, index, settled(partition, live), level)
    return records


def settled(partition: PartitionRegistration, live: Collection[int]) -> PartitionRegistration:
    """Return the state of a partition after its live replicas have caught up, which may end a reassignment.

    Without a live member of the ISR there is no leader, and the ISR keeps its last members: no other replica is
    elected, as in Kafka without unclean elections.
    """
    isr = [one for one in partition.isr if one in live and one in partition.replicas]
    if not isr:
        return partition._replace(leader=NO_LEADER)
    electable = set(isr)
    isr += [one for one in partition.replicas if one in live and one not in isr]
    replicas, adding, removing = partition.replicas, partition.adding_replicas, partition.removing_replicas
    wanted = tuple(one for one in replicas if one not in removing)
    if (adding or removing) and set(wanted) <= set(isr):
        replicas, adding, removing = wanted, (), ()
        isr = [one for one in isr if one in wanted]
        electable = electable & set(isr) or set(isr)
    leader = partition.leader if partition.leader in isr else next(one for one in replicas if one in electable)
    directories = _directories(partition, replicas)
    return partition._replace(
        replicas=replicas,
        directories=directories,
        isr=tuple(isr),
        adding_replicas=adding,
        removing_replicas=removing,
        leader=leader,
    )


def change_records(topic: TopicImage, index: int, after: PartitionRegistration, level: int) -> list[MetadataRecord]:
    """Return the record that changes a partition to the state ``after``, none if that is its state.

    The leader epoch rises if the leader changes or a replica is removed.
    """
    before = topic.partitions[index]
    fields = {
        "Replicas": (before.replicas, after.replicas),
        "Isr": (before.isr, after.isr),
        "AddingReplicas": (before.adding_replicas, after.adding_replicas),
        "RemovingReplicas": (before.removing_replicas, after.removing_replicas),
    }
    body: dict[str, object] = {name: list(new) for name, (old, new) in fields.items() if old != new}
    if before.leader != after.leader or set(before.replicas) - set(after.replicas):
        body["Leader"] = after.leader
    if before.replicas != after.replicas and level >= DIRECTORIES_LEVEL:
        body["Directories"] = list(after.directories)
    if not body:
        return []
    return [metadata_record("PartitionChangeRecord", {"PartitionId": index, "TopicId": topic.topic_id, **body}, level)]


def led_by(partition: PartitionRegistration, node_id: int, live: Collection[int]) -> PartitionRegistration:
    """Return the state of a partition that a node leads from now on.

    A node that is not a replica replaces the former leader, and a reassignment in progress ends.

    Raises: KafkaError for a node that is not live.
    """
    if node_id not in live:
        raise KafkaError(Errors.INVALID_REPLICA_ASSIGNMENT, f"node {node_id} does not serve: start it first")
    if node_id not in partition.replicas:
        kept = [one for one in partition.replicas if one not in partition.adding_replicas]
        leaving = partition.leader if partition.leader in kept else kept[0]
        replicas = tuple(node_id if one == leaving else one for one in kept)
        partition = partition._replace(
            replicas=replicas,
            directories=_directories(partition, replicas),
            isr=tuple(one for one in partition.isr if one in replicas),
            adding_replicas=(),
            removing_replicas=(),
        )
    isr = partition.isr if node_id in partition.isr else (*partition.isr, node_id)
    return settled(partition._replace(isr=isr, leader=node_id), live)


def reassigned(
    partition: PartitionRegistration, wanted: Sequence[int] | None, live: Collection[int]
) -> PartitionRegistration:
    """Return the state of a partition that is assigned to other replicas; None cancels a reassignment.

    The reassignment ends as soon as all wanted replicas are live. Until then, replicas of an earlier one stay.

    Raises: KafkaError NO_REASSIGNMENT_IN_PROGRESS; INVALID_REPLICA_ASSIGNMENT if no replica from before the cancelled
    reassignment is in the ISR.
    """
    known = partition.replicas
    if wanted is None:
        if not partition.adding_replicas and not partition.removing_replicas:
            raise KafkaError(Errors.NO_REASSIGNMENT_IN_PROGRESS, "")
        wanted = known = tuple(one for one in known if one not in partition.adding_replicas)
    removing = tuple(one for one in known if one not in wanted)
    replicas = (*wanted, *removing)
    isr = tuple(one for one in partition.isr if one in replicas)
    if not isr:
        text = (
            f"none of the original replicas {list(known)} is in the ISR {list(partition.isr)}: start one of them first"
        )
        raise KafkaError(Errors.INVALID_REPLICA_ASSIGNMENT, text)
    after = partition._replace(
        replicas=replicas,
        directories=_directories(partition, replicas),
        isr=isr,
        adding_replicas=tuple(one for one in wanted if one not in known),
        removing_replicas=removing,
    )
    return settled(after, live)


def elected(partition: PartitionRegistration, live: Collection[int], *, is_unclean: bool) -> PartitionRegistration:
    """Return the state after ElectLeaders elects the preferred replica or, if ``is_unclean``, the first live one.

    Raises: KafkaError ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE.
    """
    if is_unclean:
        if partition.leader != NO_LEADER:
            raise KafkaError(Errors.ELECTION_NOT_NEEDED, NOT_NEEDED)
        found = next((one for one in partition.replicas if one in live), None)
        if found is None:
            raise KafkaError(Errors.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        return settled(partition._replace(isr=(found,), leader=found), live)
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise KafkaError(Errors.ELECTION_NOT_NEEDED, NOT_NEEDED)
    if preferred not in partition.isr or preferred not in live:
        raise KafkaError(Errors.PREFERRED_LEADER_NOT_AVAILABLE)
    return partition._replace(leader=preferred)


def _directories(partition: PartitionRegistration, replicas: Iterable[int]) -> tuple[uuid.UUID, ...]:
    known = dict(zip(partition.replicas, partition.directories, strict=True))
    return tuple(known.get(one, UNASSIGNED) for one in replicas)
