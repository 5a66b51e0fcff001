"""Topics for the native handlers: an immutable table, swapped whole, counted.

A table has a reference to every partition in it. A caller that keeps a partition beyond the request acquires its
own.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.sync cimport AtomicI64
from kbroker.log._partition cimport Partition

cdef enum:
    MAX_ISR = 8                 # members of an ISR to which consumers are directed; more are left out

cdef struct Foreign:            # leader and ISR of a partition; only for topics that have a partition on other nodes
    int32_t leader              # -1: none
    int32_t leader_epoch
    Partition *partition        # counted: another node leads it, and this node may serve it to consumers; NULL: no
    int32_t isr_count
    int32_t isr[MAX_ISR]

cdef struct Topic:
    char *name                  # owned, not terminated
    int32_t name_bytes
    char id[16]
    Partition **partitions      # each counted, by partition number; NULL: another node leads it, or it has no log
    Foreign *foreign            # by partition number. NULL: the node is the only replica of all partitions
    int32_t partition_count
    bint is_internal
    bint is_unrecorded          # requests about it alone are not recorded: the request log's own

cdef struct TopicTable:
    AtomicI64 refs
    Topic *topics
    int32_t topic_count
    int32_t *by_name            # open addressing, -1 free; size is a power of two
    int32_t *by_id
    int32_t mask

cdef TopicTable *topic_table_retain(TopicTable *table) noexcept nogil
cdef void topic_table_release(TopicTable *table) noexcept nogil
cdef Topic *topic_by_name(TopicTable *table, const char *name, int64_t name_bytes) noexcept nogil
cdef Topic *topic_by_id(TopicTable *table, const char *id16) noexcept nogil

# Return the leader and epoch of a partition that another node leads; NULL: this node leads it.
cdef inline Foreign *topic_foreign(const Topic *topic, int32_t index, int32_t node_id) noexcept nogil:
    return &topic.foreign[index] if topic.foreign != NULL and topic.foreign[index].leader != node_id else NULL

# Build a table for a node from views with name, topic_id, partitions, registrations, is_internal and
# is_unrecorded.
cdef TopicTable *topic_table_build(object views, int32_t node_id) except NULL
