"""Request batches put into a queue, and native responses as by handlers, for tests and benchmarks."""
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from kbroker._core.open_file cimport OpenFile, open_file_new, open_file_release, open_file_retain
from kbroker._core.requests.request cimport (
    ACTION_CLOSE, ACTION_SEND, Request, request_add_file, request_free, request_new, request_reserve,
)
from kbroker._core.requests.request_queue cimport Queue, RequestQueue, request_queue_put, request_queue_take


cdef void respond_zeros(Request *request, int64_t body_bytes) noexcept nogil:
    cdef char *out = request_reserve(request, 4 + body_bytes)
    if out is NULL:
        request.action = ACTION_CLOSE
        return
    memset(out, 0, <size_t>(4 + body_bytes))
    if request.size_bytes >= 8:
        memcpy(out, request.payload + 4, 4)
    request.action = ACTION_SEND


cdef void respond_echo(Request *request) noexcept nogil:
    cdef char *out = request_reserve(request, request.size_bytes)
    if out is NULL:
        request.action = ACTION_CLOSE
        return
    memcpy(out, request.payload, <size_t>request.size_bytes)


cdef void respond_backwards(Request *batch) noexcept nogil:
    """Send each response on its own, the last frame first, as delayed requests may complete."""
    if batch.batch_next is not NULL:
        respond_backwards(batch.batch_next)
    batch.next = NULL
    batch.responder.respond(batch.responder, batch)


def run_echo(Queue queue not None, int64_t body_bytes=-1, *, bint backwards=False):
    """Respond with the same bytes, or bytes 4..7 (a correlation id) and body_bytes zeros, until the queue is closed."""
    cdef RequestQueue *requests = queue.queue
    cdef Request *batch
    cdef Request *frame
    cdef int64_t served = 0
    with nogil:
        while True:
            batch = request_queue_take(requests, -1)
            if batch is NULL:
                break
            frame = batch
            while frame is not NULL:
                served += 1
                if body_bytes < 0:
                    respond_echo(frame)
                else:
                    respond_zeros(frame, body_bytes)
                frame.next = frame.batch_next
                frame = frame.batch_next
            if backwards:
                respond_backwards(batch)
            else:
                batch.responder.respond(batch.responder, batch)
    return served


def run_files(Queue queue not None, int fd, int64_t position, int64_t size_bytes):
    """Respond with the request's bytes, a file region and the bytes again until the queue is closed. Owns fd."""
    cdef RequestQueue *requests = queue.queue
    cdef OpenFile *file = open_file_new(fd)
    cdef Request *batch
    cdef Request *frame
    if file is NULL:
        raise MemoryError
    with nogil:
        while True:
            batch = request_queue_take(requests, -1)
            if batch is NULL:
                break
            frame = batch
            while frame is not NULL:
                respond_echo(frame)
                if not request_add_file(frame, open_file_retain(file), position, size_bytes):
                    open_file_release(file)
                respond_echo(frame)
                frame.next = frame.batch_next
                frame = frame.batch_next
            batch.responder.respond(batch.responder, batch)
        open_file_release(file)


def put_batch(Queue queue not None, list payloads not None):
    """Put a batch of frames; return False if the queue is closed, which drops the frames."""
    cdef Request *head = NULL
    cdef Request *last = NULL
    cdef Request *frame
    cdef bytes payload
    cdef bint done
    for payload in payloads:
        frame = request_new(NULL, len(payload))
        if frame is NULL:
            raise MemoryError
        memcpy(frame.payload, <const char *>payload, len(payload))
        if last is NULL:
            head = frame
        else:
            last.batch_next = frame
        last = frame
    with nogil:
        done = request_queue_put(queue.queue, &head, False)
        while head is not NULL:
            frame = head
            head = head.batch_next
            request_free(frame)
    return done


def take_batch(Queue queue not None, int64_t timeout_ns):
    """Take a batch as a list of payloads; return None after the timeout."""
    cdef Request *batch
    cdef Request *frame
    cdef list payloads = []
    with nogil:
        batch = request_queue_take(queue.queue, timeout_ns)
    if batch is NULL:
        return None
    while batch is not NULL:
        frame = batch
        batch = batch.batch_next
        payloads.append(frame.payload[:frame.size_bytes])
        request_free(frame)
    return payloads
