/* Time from the Produce request of a record to the Fetch responses that contain it. One thread, one epoll set.
 *
 *   follow --port P --produce FILE --fetch FILE --offset-at K --records-at R --start OFFSET [--consumers N] [--rate R]
 *          [--seconds S] [--warm-up S]
 *
 * --produce     a request of one record, without its length; the partition has no other writer
 * --fetch       a request for this partition that waits for records, which each consumer repeats after each response
 * --offset-at   position of the int64 fetch offset in this request
 * --records-at  position of the int32 size of the records in a Fetch response, without its length
 * --start       offset of the first record that will be produced
 * --rate        records per second: record k is due at k/R, and its latency counts from then. Without it the next
 *               record is sent when all consumers have the previous one.
 *
 * Prints one JSON object; a delivery is one record at one consumer. Exit status: 0 done, 1 a wrong response. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_BYTES = 1 << 16, RESPONSE_BYTES = 1 << 20, EVENTS = 256, MAX_RECORDS = 1 << 22, MAX_LATENCIES = 1 << 23 };

struct connection {
    int fd;
    bool is_producer;
    int64_t offset; /* a consumer reads from here */
    size_t got;
    unsigned char *response;
};

static int port, consumers = 1;
static long offset_at, records_at;
static int64_t start_offset;
static double rate, seconds = 1, warm_up_s;
static unsigned char produce_frame[FRAME_BYTES], fetch_frame[FRAME_BYTES];
static size_t produce_bytes, fetch_bytes;
static int64_t due_ns[MAX_RECORDS];
static int64_t sent, measured_from_ns;
static int waiting_for_last; /* consumers that do not have the newest record yet */
static uint32_t *latencies_ns;
static size_t latency_count;

static void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("follow: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static uint32_t word(const unsigned char *bytes) {
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return be32toh(value);
}

static int64_t long_word(const unsigned char *bytes) {
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return (int64_t)be64toh(value);
}

static size_t read_frame(const char *name, unsigned char *frame) {
    FILE *file = fopen(name, "rb");
    if (file == NULL) fail("%s: %s", name, strerror(errno));
    size_t size = fread(frame + 4, 1, FRAME_BYTES - 4, file);
    fclose(file);
    uint32_t length = htobe32((uint32_t)size);
    memcpy(frame, &length, 4);
    return size + 4;
}

/* Requests are small and few are in flight, so the socket takes each request whole. */
static void send_all(int fd, const unsigned char *bytes, size_t size) {
    ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
    if (n != (ssize_t)size) fail("send: %s", n < 0 ? strerror(errno) : "the socket is full");
}

static void fetch(struct connection *c) {
    uint64_t offset = htobe64((uint64_t)c->offset);
    memcpy(fetch_frame + 4 + offset_at, &offset, 8);
    send_all(c->fd, fetch_frame, fetch_bytes);
}

static void produce(struct connection *c, int64_t due) {
    if (sent == MAX_RECORDS) fail("more than %d records", MAX_RECORDS);
    due_ns[sent++] = due;
    waiting_for_last = consumers;
    send_all(c->fd, produce_frame, produce_bytes);
}

static void deliver(int64_t offset, int64_t now) {
    int64_t number = offset - start_offset;
    if (number < 0 || number >= sent) fail("offset %" PRId64 " was not produced", offset);
    if (number == sent - 1) waiting_for_last--;
    if (due_ns[number] < measured_from_ns || latency_count == MAX_LATENCIES) return;
    int64_t latency = now - due_ns[number];
    latencies_ns[latency_count++] = latency > UINT32_MAX ? UINT32_MAX : (uint32_t)latency;
}

/* Reads the base offset and length of each batch of a whole response, and sends the next request. */
static void finish_fetch(struct connection *c, int64_t now) {
    const unsigned char *body = c->response + 4;
    size_t size = c->got - 4;
    if (size < (size_t)records_at + 4) fail("a Fetch response of %zu bytes", size);
    /* error code, high watermark, last stable offset, count of aborted transactions, size */
    int16_t code = (int16_t)(body[records_at - 22] << 8 | body[records_at - 21]);
    if (code != 0) fail("the server responded with error %d", code);
    size_t end = (size_t)records_at + 4 + word(body + records_at);
    for (size_t at = (size_t)records_at + 4; at + 61 <= end;) {
        int64_t base = long_word(body + at);
        size_t whole = 12 + word(body + at + 8);
        if (at + whole > end) break;
        int64_t next = base + (int32_t)word(body + at + 23) + 1;
        for (; c->offset < next; c->offset++) deliver(c->offset, now);
        at += whole;
    }
    fetch(c);
}

static void receive(struct connection *c) {
    for (;;) {
        size_t wanted = c->got < 4 ? 4 : 4 + (size_t)word(c->response);
        if (wanted > RESPONSE_BYTES) fail("a response of %zu bytes", wanted);
        ssize_t n = recv(c->fd, c->response + c->got, wanted - c->got, 0);
        if (n == 0) fail("the server closed a connection");
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) fail("recv: %s", strerror(errno));
        c->got += (size_t)n;
        if (c->got < 4 || c->got < 4 + (size_t)word(c->response)) continue;
        if (!c->is_producer) finish_fetch(c, now_ns());
        c->got = 0;
    }
}

static int smaller_first(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double percentile_us(double share) {
    size_t rank = (size_t)(share * (double)latency_count);
    return latencies_ns[rank < latency_count ? rank : latency_count - 1] / 1e3;
}

static void connect_all(struct connection *all, int poll_fd) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i <= consumers; i++) {
        struct connection *c = &all[i];
        int one = 1;
        c->is_producer = i == 0;
        c->offset = start_offset;
        c->response = malloc(RESPONSE_BYTES);
        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->response == NULL || c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0)
            fail("connect: %s", strerror(errno));
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event) != 0) fail("epoll_ctl: %s", strerror(errno));
        if (i > 0) fetch(c);
    }
}

static void run(struct connection *all, int poll_fd) {
    struct epoll_event events[EVENTS];
    int64_t begun = now_ns() + 100000000, last = 0; /* the consumers are waiting by then */
    measured_from_ns = begun + (int64_t)(warm_up_s * 1e9);
    int64_t end = measured_from_ns + (int64_t)(seconds * 1e9);
    for (;;) {
        int64_t now = now_ns(), next = end;
        if (now >= end) break;
        if (rate > 0) {
            while ((next = begun + (int64_t)((double)sent * 1e9 / rate)) <= now) produce(&all[0], next);
        } else if (now < begun) {
            next = begun;
        } else if (waiting_for_last == 0) {
            produce(&all[0], now);
        }
        int64_t left = (next < end ? next : end) - now_ns();
        struct timespec wait = {.tv_sec = left < 0 ? 0 : left / 1000000000, .tv_nsec = left < 0 ? 0 : left % 1000000000};
        int count = epoll_pwait2(poll_fd, events, EVENTS, &wait, NULL);
        if (count < 0 && errno != EINTR) fail("epoll_pwait2: %s", strerror(errno));
        for (int i = 0; i < count; i++) receive(events[i].data.ptr);
        if (count > 0) last = now_ns();
    }
    if (latency_count == 0) fail("no record arrived within the measured %g s", seconds);
    size_t deliveries = latency_count;
    qsort(latencies_ns, latency_count, sizeof *latencies_ns, smaller_first);
    printf("{\"deliveries\": %zu, \"deliveries_per_s\": %.0f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
           deliveries, (double)deliveries / ((double)(last - measured_from_ns) / 1e9), percentile_us(.5),
           percentile_us(.99), percentile_us(1));
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"port", required_argument, NULL, 'p'},      {"produce", required_argument, NULL, 'o'},
        {"fetch", required_argument, NULL, 'f'},     {"offset-at", required_argument, NULL, 'k'},
        {"records-at", required_argument, NULL, 'a'}, {"start", required_argument, NULL, 'b'},
        {"consumers", required_argument, NULL, 'c'}, {"rate", required_argument, NULL, 'r'},
        {"seconds", required_argument, NULL, 's'},   {"warm-up", required_argument, NULL, 'w'},
        {NULL, 0, NULL, 0},
    };
    for (int found; (found = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (found) {
        case 'p': port = atoi(optarg); break;
        case 'o': produce_bytes = read_frame(optarg, produce_frame); break;
        case 'f': fetch_bytes = read_frame(optarg, fetch_frame); break;
        case 'k': offset_at = atol(optarg); break;
        case 'a': records_at = atol(optarg); break;
        case 'b': start_offset = atoll(optarg); break;
        case 'c': consumers = atoi(optarg); break;
        case 'r': rate = atof(optarg); break;
        case 's': seconds = atof(optarg); break;
        case 'w': warm_up_s = atof(optarg); break;
        default: return 2;
        }
    }
    if (optind < argc || port == 0 || produce_bytes == 0 || fetch_bytes == 0 || records_at < 22 || consumers < 1) {
        fprintf(stderr, "usage: follow --port P --produce FILE --fetch FILE --offset-at K --records-at R --start OFFSET"
                        " [--consumers N] [--rate R] [--seconds S] [--warm-up S]\n");
        return 2;
    }
    int poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct connection *all = calloc((size_t)consumers + 1, sizeof *all);
    latencies_ns = malloc(MAX_LATENCIES * sizeof *latencies_ns);
    if (poll_fd < 0 || all == NULL || latencies_ns == NULL) fail("no epoll set or no memory");
    connect_all(all, poll_fd);
    run(all, poll_fd);
    return 0;
}
