"""A run of Produce requests for one partition, which one write appends; see the contract in the .pxd.

All frames of a batch are appended at once if its client uses at most half of each quota, even if all bytes
appended before them counted as its own. Those of other clients take turns, frame by frame, so that a throttled
client's next frames are not executed. Each request is charged its share of the time of the append.
"""
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.clock cimport clock_now_ns
from kbroker._core.codec.bytes cimport load_i16
from kbroker._core.requests.request cimport Request
from kbroker.apis.api00_produce._produce cimport (
    begin_gathered, finish_gathered, note_slow_append, parse_gathered,
)
from kbroker.apis.api00_produce._produce_request cimport ProduceRequest, free_produce
from kbroker.handlers._batch_progress cimport (
    BatchProgress, batch_begin, batch_end, batch_take, is_intercepted, parse_header,
)
from kbroker.log._append cimport RUN_PARTS, AppendPart, partition_append_run
from kbroker.log._partition cimport Partition
from kbroker.network._kafka_request cimport kafka_request
from kbroker.quota._quota_enforcement cimport has_headroom
from kbroker.requests._native_types cimport (
    PRODUCE, Handler, NativeApisCore, OUTCOME_RESPONDED, Outcome,
)

cdef enum:
    WEIGHT_BYTES = 256          # added to the size of each request, which determines its share of the time

cdef struct RunBatch:
    BatchProgress progress
    int32_t next                # index of its next frame in ProduceRun.requests
    int32_t end

cdef struct ProduceRun:
    Partition *partition        # borrowed from the handler's topics
    int32_t batch_count
    int32_t frame_count
    int64_t turn_bytes          # size of the current turn's requests
    RunBatch batches[RUN_PARTS]
    ProduceRequest requests[RUN_PARTS]
    AppendPart parts[RUN_PARTS]         # parts of the current turn
    int32_t batch_of[RUN_PARTS]         # batch of each request of the turn
    int32_t frame_of[RUN_PARTS]         # its index in requests
    int32_t part_of[RUN_PARTS]          # its index in parts; -1: refused before the append
    AppendPart refused[RUN_PARTS]


cdef bint run_is_empty(Handler *handler) noexcept nogil:
    return handler.run == NULL or (<ProduceRun *>handler.run).batch_count == 0


cdef void run_free(Handler *handler) noexcept nogil:
    free(handler.run)
    handler.run = NULL


cdef bint run_add(Handler *handler, Request *head) noexcept nogil:
    cdef ProduceRun *run = <ProduceRun *>handler.run
    cdef RunBatch *batch
    cdef Partition *partition
    cdef Request *request = head
    cdef int32_t end
    cdef int refused
    if run == NULL:
        handler.run = run = <ProduceRun *>calloc(1, sizeof(ProduceRun))
        if run == NULL:
            return False
    end = run.frame_count
    while request != NULL and end < RUN_PARTS:
        if request.size_bytes < 2 or load_i16(request.payload) != PRODUCE:
            break
        if parse_header(handler.native_apis, request, &refused) == NULL or is_intercepted(
                handler.native_apis, request):
            break
        partition = parse_gathered(handler, request, &run.requests[end])
        end += 1
        if partition == NULL or partition != run.partition and end > 1:
            break
        run.partition = partition
        request = request.batch_next
    if request != NULL:
        while end > run.frame_count:
            end -= 1
            free_produce(&run.requests[end])
        return False
    batch = &run.batches[run.batch_count]
    batch_begin(&batch.progress, head)
    batch.next = run.frame_count
    batch.end = run.frame_count = end
    run.batch_count += 1
    return True


cdef int32_t begin_turn(Handler *handler, ProduceRun *run, int32_t *appended, int64_t now_ns) noexcept nogil:
    """Choose the requests of the next turn; return their number, and how many of them are to be appended."""
    cdef RunBatch *batch
    cdef int32_t b, chosen = 0, parts = 0, end
    cdef Request *request
    run.turn_bytes = 0
    for b in range(run.batch_count):
        batch = &run.batches[b]
        if batch.progress.outcome != OUTCOME_RESPONDED or batch.next == batch.end:
            continue
        end = batch.next + 1
        request = batch.progress.rest
        if end < batch.end and has_headroom(
                handler.native_apis.quotas, handler.clients, request, run.turn_bytes, now_ns):
            end = batch.end
        while batch.next < end:
            run.batch_of[chosen] = b
            run.frame_of[chosen] = batch.next
            run.part_of[chosen] = -1
            if begin_gathered(handler, request, &run.requests[batch.next], &run.parts[parts]):
                run.part_of[chosen] = parts
                parts += 1
            else:
                run.refused[chosen] = run.parts[parts]
            batch.next += 1
            chosen += 1
            run.turn_bytes += request.size_bytes
            request = request.batch_next
    appended[0] = parts
    return chosen


cdef void end_turn(Handler *handler, ProduceRun *run, int32_t chosen, int64_t append_ns) noexcept nogil:
    """Complete the requests of a turn in order, each with its share of the time of the append, by its size."""
    cdef NativeApisCore *native_apis = handler.native_apis
    cdef RunBatch *batch
    cdef Request *request
    cdef Outcome outcome
    cdef int32_t i
    cdef int64_t now = clock_now_ns(native_apis.clock), weight = run.turn_bytes + chosen * WEIGHT_BYTES
    for i in range(chosen):
        batch = &run.batches[run.batch_of[i]]
        request = batch.progress.rest
        batch.progress.rest = request.batch_next
        request.batch_next = NULL
        request.next = NULL
        request.dequeue_ns = now - append_ns * (WEIGHT_BYTES + request.size_bytes) // weight
        if run.part_of[i] >= 0:
            outcome = finish_gathered(handler, request, &run.requests[run.frame_of[i]], run.partition,
                                      &run.parts[run.part_of[i]].result)
        else:
            outcome = finish_gathered(handler, request, &run.requests[run.frame_of[i]], NULL, &run.refused[i].result)
        now = kafka_request(request).local_done_ns if outcome == OUTCOME_RESPONDED else clock_now_ns(native_apis.clock)
        batch_take(&batch.progress, native_apis, request, outcome)


cdef void run_flush(Handler *handler) noexcept nogil:
    cdef NativeApisCore *native_apis = handler.native_apis
    cdef ProduceRun *run = <ProduceRun *>handler.run
    cdef int32_t i, chosen, appended
    cdef int64_t started, ended
    if run_is_empty(handler):
        return
    started = clock_now_ns(native_apis.clock)
    chosen = begin_turn(handler, run, &appended, started)
    while chosen > 0:
        partition_append_run(run.partition, run.parts, appended)
        ended = clock_now_ns(native_apis.clock)
        note_slow_append(native_apis, started, ended)
        end_turn(handler, run, chosen, ended - started)
        started = clock_now_ns(native_apis.clock)
        chosen = begin_turn(handler, run, &appended, started)
    for i in range(run.frame_count):
        free_produce(&run.requests[i])
    for i in range(run.batch_count):
        batch_end(&run.batches[i].progress, native_apis)
    run.frame_count = run.batch_count = 0
    run.partition = NULL
