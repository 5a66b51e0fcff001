# cython: freethreading_compatible=True
"""Follows transactions through a log that is read from one end to the other."""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memset
from kbroker.log.compaction._cleaned_segment cimport CleanedSegment, cleaned_add_aborted
from kbroker.log._posix cimport EIO, ENOMEM
from kbroker.log.producers._producer_state cimport AbortedTxn
from kbroker.log.segment._segment cimport SegmentList, segment_list_floor
from kbroker.log.segment._txn_index cimport txn_index_collect
from kbroker.protocol._records cimport BatchHeader

cdef enum:
    ABORT = 0
    COMMIT = 1
    TRANSACTIONAL_BIT = 16


cdef int by_first_offset(const void *left, const void *right) noexcept nogil:
    cdef int64_t a = (<const AbortedTxn *>left).first_offset, b = (<const AbortedTxn *>right).first_offset
    return -1 if a < b else (1 if a > b else 0)


cdef int32_t tracker_load(TxnTracker *tracker, SegmentList *view, int64_t start, int64_t end) noexcept nogil:
    cdef int32_t slot = segment_list_floor(view, start), rc
    if slot < 0:
        slot = 0
    while slot < view.count:
        rc = txn_index_collect(&view.segments[slot].aborted, start, end, &tracker.known, &tracker.known_count)
        if rc < 0:
            return -EIO
        if rc == 1:
            break
        slot += 1
    if tracker.known_count > 1:
        qsort(tracker.known, tracker.known_count, sizeof(AbortedTxn), by_first_offset)
    return 0


cdef void tracker_free(TxnTracker *tracker) noexcept nogil:
    free(tracker.known)
    free(tracker.aborted)
    free(tracker.committed)
    memset(tracker, 0, sizeof(TxnTracker))


cdef int32_t find_aborted(const TxnTracker *tracker, int64_t producer_id) noexcept nogil:
    cdef int32_t slot
    for slot in range(tracker.aborted_count):
        if tracker.aborted[slot].txn.producer_id == producer_id:
            return slot
    return -1


cdef int32_t find_committed(const TxnTracker *tracker, int64_t producer_id) noexcept nogil:
    cdef int32_t slot
    for slot in range(tracker.committed_count):
        if tracker.committed[slot] == producer_id:
            return slot
    return -1


cdef int32_t begin_up_to(TxnTracker *tracker, int64_t offset) noexcept nogil:
    """Aborted transactions that began at or before offset are under way; one at a time for each producer."""
    cdef OpenAborted *grown
    cdef int32_t room
    cdef AbortedTxn *txn
    while tracker.next_known < tracker.known_count and tracker.known[tracker.next_known].first_offset <= offset:
        txn = &tracker.known[tracker.next_known]
        tracker.next_known += 1
        if find_aborted(tracker, txn.producer_id) >= 0:
            continue
        if tracker.aborted_count == tracker.aborted_capacity:
            room = 8 if tracker.aborted_capacity == 0 else tracker.aborted_capacity * 2
            grown = <OpenAborted *>realloc(tracker.aborted, room * sizeof(OpenAborted))
            if grown is NULL:
                return -ENOMEM
            tracker.aborted = grown
            tracker.aborted_capacity = room
        tracker.aborted[tracker.aborted_count].txn = txn[0]
        tracker.aborted[tracker.aborted_count].has_data = False
        tracker.aborted_count += 1
    return 0


cdef int32_t tracker_read_data(TxnTracker *tracker, const BatchHeader *header) noexcept nogil:
    cdef int32_t slot, room
    cdef int64_t *grown
    if begin_up_to(tracker, header.base_offset + header.last_offset_delta) != 0:
        return -ENOMEM
    if not header.attributes & TRANSACTIONAL_BIT:
        return 0
    slot = find_aborted(tracker, header.producer_id)
    if slot >= 0:
        tracker.aborted[slot].has_data = True
        return 1
    if find_committed(tracker, header.producer_id) >= 0:
        return 0
    if tracker.committed_count == tracker.committed_capacity:
        room = 8 if tracker.committed_capacity == 0 else tracker.committed_capacity * 2
        grown = <int64_t *>realloc(tracker.committed, room * sizeof(int64_t))
        if grown is NULL:
            return -ENOMEM
        tracker.committed = grown
        tracker.committed_capacity = room
    tracker.committed[tracker.committed_count] = header.producer_id
    tracker.committed_count += 1
    return 0


cdef int32_t tracker_read_marker(TxnTracker *tracker, const BatchHeader *header, int32_t control_type,
                                 CleanedSegment *cleaned) noexcept nogil:
    cdef int32_t slot
    cdef OpenAborted ended
    if begin_up_to(tracker, header.base_offset + header.last_offset_delta) != 0:
        return -ENOMEM
    if header.record_count == 0:
        return 1
    if control_type == ABORT:
        slot = find_aborted(tracker, header.producer_id)
        if slot < 0:
            return 1
        ended = tracker.aborted[slot]
        tracker.aborted_count -= 1
        tracker.aborted[slot] = tracker.aborted[tracker.aborted_count]
        if not ended.has_data:
            return 1
        return 0 if cleaned is NULL else cleaned_add_aborted(cleaned, &ended.txn)
    if control_type == COMMIT:
        slot = find_committed(tracker, header.producer_id)
        if slot < 0:
            return 1
        tracker.committed_count -= 1
        tracker.committed[slot] = tracker.committed[tracker.committed_count]
        return 0
    return 0
