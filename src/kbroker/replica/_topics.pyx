"""Immutable topic table of the native handlers of a node; see the .pxd for the owners."""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from kbroker._core.containers.hashing cimport hash_seeded
from kbroker._core.sync cimport atomic_add_fetch, atomic_store
from kbroker.log._partition cimport Partition, partition_release, partition_retain
from kbroker.log._partition_log cimport PartitionLog


cdef enum:
    SEED = 0                    # not secret: no attacker creates many topics cheaply


cdef TopicTable *topic_table_retain(TopicTable *table) noexcept nogil:
    atomic_add_fetch(&table.refs, 1)
    return table


cdef void topic_table_release(TopicTable *table) noexcept nogil:
    cdef int32_t i, k
    if table == NULL or atomic_add_fetch(&table.refs, -1) > 0:
        return
    for i in range(table.topic_count):
        for k in range(table.topics[i].partition_count):
            if table.topics[i].partitions[k] != NULL:
                partition_release(table.topics[i].partitions[k])
            if table.topics[i].foreign != NULL and table.topics[i].foreign[k].partition != NULL:
                partition_release(table.topics[i].foreign[k].partition)
        free(table.topics[i].partitions)
        free(table.topics[i].foreign)
        free(table.topics[i].name)
    free(table.topics)
    free(table.by_name)
    free(table.by_id)
    free(table)


cdef Topic *topic_by_name(TopicTable *table, const char *name, int64_t name_bytes) noexcept nogil:
    cdef int32_t slot = <int32_t>(hash_seeded(name, name_bytes, SEED) & <uint64_t>table.mask)
    cdef Topic *topic
    while table.by_name[slot] >= 0:
        topic = &table.topics[table.by_name[slot]]
        if topic.name_bytes == name_bytes and memcmp(topic.name, name, <size_t>name_bytes) == 0:
            return topic
        slot = (slot + 1) & table.mask
    return NULL


cdef Topic *topic_by_id(TopicTable *table, const char *id16) noexcept nogil:
    cdef int32_t slot = <int32_t>(hash_seeded(id16, 16, SEED) & <uint64_t>table.mask)
    cdef Topic *topic
    while table.by_id[slot] >= 0:
        topic = &table.topics[table.by_id[slot]]
        if memcmp(topic.id, id16, 16) == 0:
            return topic
        slot = (slot + 1) & table.mask
    return NULL


cdef void link(TopicTable *table, int32_t index) noexcept nogil:
    cdef Topic *topic = &table.topics[index]
    cdef int32_t slot = <int32_t>(hash_seeded(topic.name, topic.name_bytes, SEED) & <uint64_t>table.mask)
    while table.by_name[slot] >= 0:
        slot = (slot + 1) & table.mask
    table.by_name[slot] = index
    slot = <int32_t>(hash_seeded(topic.id, 16, SEED) & <uint64_t>table.mask)
    while table.by_id[slot] >= 0:
        slot = (slot + 1) & table.mask
    table.by_id[slot] = index


cdef int fill_foreign(Topic *topic, list logs, tuple registrations, int32_t node_id) except -1:
    """Set topic.foreign to leaders and ISR; a topic with its only replicas on this node has none."""
    cdef PartitionLog log
    cdef Foreign *foreign
    cdef int32_t k, i
    if all([one.replicas == (node_id,) and one.leader == node_id for one in registrations]):
        return 0
    topic.foreign = <Foreign *>calloc(<size_t>len(registrations), sizeof(Foreign))
    if topic.foreign == NULL:
        raise MemoryError
    for k in range(<int32_t>len(registrations)):
        foreign = &topic.foreign[k]
        foreign.leader, foreign.leader_epoch = registrations[k].leader, registrations[k].leader_epoch
        for i, member in enumerate(registrations[k].isr[:MAX_ISR]):
            foreign.isr[i] = member
            foreign.isr_count = i + 1
        log = logs[k]
        if foreign.leader != node_id and node_id in registrations[k].isr and log is not None and log.partition != NULL:
            foreign.partition = partition_retain(log.partition)
    return 0


cdef int fill(Topic *topic, object view, int32_t node_id) except -1:
    cdef bytes name = view.name.encode("utf-8", "surrogateescape")
    cdef bytes topic_id = view.topic_id.bytes
    cdef list logs = list(view.partitions)
    cdef PartitionLog log
    cdef int32_t k
    topic.name = <char *>malloc(<size_t>(len(name) or 1))
    topic.partitions = <Partition **>calloc(<size_t>(len(logs) or 1), sizeof(Partition *))
    if topic.name == NULL or topic.partitions == NULL:
        raise MemoryError
    memcpy(topic.name, <const char *>name, <size_t>len(name))
    topic.name_bytes = <int32_t>len(name)
    memcpy(topic.id, <const char *>topic_id, 16)
    topic.is_internal = view.is_internal
    topic.is_unrecorded = view.is_unrecorded
    topic.partition_count = <int32_t>len(logs)
    fill_foreign(topic, logs, view.registrations, node_id)
    for k in range(<int32_t>len(logs)):
        log = logs[k]
        if log is not None and log.partition != NULL and topic_foreign(topic, k, node_id) == NULL:
            topic.partitions[k] = partition_retain(log.partition)
    return 0


cdef TopicTable *topic_table_build(object views, int32_t node_id) except NULL:
    """Return a table of topics for a node.

    Args: views: see the .pxd; ``topic_id`` is a uuid.UUID, ``partitions`` has a PartitionLog or None by number.
    """
    cdef list all_views = list(views)
    cdef int32_t count = <int32_t>len(all_views)
    cdef int32_t size = 16, i
    cdef TopicTable *table = <TopicTable *>calloc(1, sizeof(TopicTable))
    while size < count * 2:
        size *= 2
    if table == NULL:
        raise MemoryError
    atomic_store(&table.refs, 1)
    table.mask = size - 1
    table.topics = <Topic *>calloc(<size_t>(count or 1), sizeof(Topic))
    table.by_name = <int32_t *>malloc(<size_t>size * sizeof(int32_t))
    table.by_id = <int32_t *>malloc(<size_t>size * sizeof(int32_t))
    try:
        if table.topics == NULL or table.by_name == NULL or table.by_id == NULL:
            raise MemoryError
        for i in range(size):
            table.by_name[i] = table.by_id[i] = -1
        for i in range(count):
            table.topic_count = i + 1
            fill(&table.topics[i], all_views[i], node_id)
            link(table, i)
    except BaseException:
        topic_table_release(table)
        raise
    return table


def partition_key(PartitionLog log not None) -> int:
    """Return the high half of the key of a partition in the signal of appends; the low half is 0."""
    return <int64_t>log.partition
