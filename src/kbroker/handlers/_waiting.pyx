"""Delayed fetches and produces as facts; see the contract in the .pxd."""
from libc.stdint cimport int32_t, int64_t

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.sync cimport mutex_lock, mutex_unlock
from kbroker._core.timer.purgatory_core cimport (
    Operation, Purgatory, PurgatorySnapshot, WaitingEntry, operation_due_ms, purgatory_delayed, purgatory_snapshot_free,
    purgatory_snapshot_take, purgatory_watched,
)
from kbroker.apis.api00_produce._delayed_produce cimport delayed_produce_source
from kbroker.apis.api01_fetch._fetch_types cimport FetchState
from kbroker.requests._native_types cimport NativeApisCore
from kbroker.replica._topics cimport Topic, TopicTable, topic_table_release, topic_table_retain

cdef enum:
    KEYS_SHOWN = 16             # of an operation


cdef dict names_of(NativeApisCore *native_apis, dict wanted):
    """Return (topic, partition) by address of the partition, for the wanted partitions that still exist."""
    cdef TopicTable *table
    cdef Topic *topic
    cdef int32_t i, k
    cdef dict names = {}
    with nogil:
        mutex_lock(&native_apis.topics_lock)
        table = topic_table_retain(native_apis.topics)
        mutex_unlock(&native_apis.topics_lock)
    for i in range(table.topic_count):
        topic = &table.topics[i]
        for k in range(topic.partition_count):
            if <int64_t>topic.partitions[k] in wanted:
                names[<int64_t>topic.partitions[k]] = [topic.name[:topic.name_bytes].decode("utf-8", "replace"), k]
    with nogil:
        topic_table_release(table)
    return names


cdef dict waiting_in(NativeApisCore *native_apis, Purgatory *purgatory, bint is_fetch, int64_t limit):
    cdef PurgatorySnapshot taken
    cdef WaitingEntry *entry
    cdef Operation *op
    cdef int64_t i, due_ms, now_ms, watched, number
    cdef int32_t processor
    cdef bint made
    cdef dict found = {}
    cdef dict facts, partitions = {}
    cdef list keys
    with nogil:
        made = purgatory_snapshot_take(&taken, purgatory, limit)
        watched = purgatory_watched(purgatory)
    if not made:
        raise MemoryError
    try:
        now_ms = clock_now_ns(native_apis.clock) // 1000000
        for i in range(taken.count):
            entry = &taken.entries[i]
            op = entry.op
            seen = found.get(<int64_t>op)
            if seen is not None:
                keys = (<dict>seen)["keys"]
                if len(keys) < KEYS_SHOWN:
                    keys.append(entry.key.high)
                    partitions[entry.key.high] = None
                continue
            with nogil:
                due_ms = operation_due_ms(purgatory, op)
            if due_ms < 0:
                continue                # completed, or about to wait
            if len(found) == limit:
                taken.is_truncated = True
                continue
            if is_fetch:
                processor, number = (<FetchState *>op).processor_id, (<FetchState *>op).channel_number
            else:
                delayed_produce_source(op, &processor, &number)
            partitions[entry.key.high] = None
            facts = found[<int64_t>op] = {
                "operation": "DelayedFetch" if is_fetch else "DelayedProduce",
                "keys": [entry.key.high],
                "key_count": entry.key_count,
                "timeout_ms": op.timeout_ms,
                "age_ms": max(0, now_ms - due_ms + op.timeout_ms),
                "time_left_ms": max(0, due_ms - now_ms),
                "processor": processor,
                "channel_number": number,
            }
            if is_fetch:
                facts["min_bytes"] = (<FetchState *>op).min_bytes
    finally:
        with nogil:
            purgatory_snapshot_free(&taken)
    names = names_of(native_apis, partitions) if partitions else {}
    for each in found.values():
        each["keys"] = [names[key] for key in each["keys"] if key in names]
    return {
        "watched": watched,
        "delayed": purgatory_delayed(purgatory),
        "is_truncated": bool(taken.is_truncated),
        "operations": list(found.values()),
    }
