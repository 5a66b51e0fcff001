/* Load for a server whose messages are an int32 length and then that many bytes, the first four of a response being the
 * correlation id (Kafka's framing). One thread, one epoll set; every response is checked.
 *
 *   load --port P --frame FILE [--connections N] [--in-flight M] [--seconds S] [--warm-up S] [--rate R] [--error-at K]
 *        [--first FILE] [--tls]
 *
 * --frame      requests, each an int32 length and that many bytes, which each connection sends in turn and repeats;
 *              the correlation id, bytes 4 to 7 of each request, is replaced
 * --in-flight  maximum number of requests in flight on each connection
 * --rate       requests per second over all connections (open loop): request k is due at k/R. When all connections are
 *              full, a request waits, and its latency counts from its due time, so that a stall of the server counts
 *              for every delayed request. Without --rate (closed loop) each response causes the next request.
 * --error-at   position of an int16 that must be 0 in a response, without its length
 * --first      requests sent once on each new connection, such as a login, each after the response to the previous one,
 *              whose content is not checked
 * --tls        connect with TLS, without verifying the certificate (not in a program compiled with -DNO_TLS)
 *
 * Latencies go into a histogram of 128 steps for each doubling: a percentile is at most 0.8 % above the true one.
 * Prints one JSON object. Exit status: 0 done, 1 a wrong response, a closed connection or no response, 2 wrong usage. */
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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifndef NO_TLS
#include <openssl/ssl.h>
#endif

enum { HEAD_BYTES = 4096, RECEIVE_BYTES = 1 << 18, EVENTS = 256 };
enum { STEP_BITS = 7, STEPS = 1 << STEP_BITS, BUCKETS = (64 - STEP_BITS) * STEPS };

struct settings {
    int port, connections, in_flight;
    double seconds, warm_up_s, rate;
    long error_at; /* -1: not looked at */
    bool has_tls;
};

/* The requests of a connection are in a ring of at least `in_flight` slots; only correlation ids change. */
struct connection {
    int fd;
    void *tls; /* its SSL object; NULL: plaintext */
    bool waits_to_send;
    uint32_t asked, sent, answered; /* requests so far; asked - answered are under way */
    size_t sent_of_next;            /* bytes of request `sent` that have left already */
    char *ring;
    int64_t *due_ns;
    size_t response_left, response_got; /* of the response that is being read; 0, 0: its length is next */
    unsigned char head[HEAD_BYTES];     /* its first bytes: length, correlation id, error code */
};

static struct settings settings = {.connections = 1, .in_flight = 1, .seconds = 1, .error_at = -1};
static uint32_t slots;
static size_t *slot_at; /* where each slot begins in a ring; one more entry for the end */
static size_t head_bytes;
static int poll_fd;
static bool is_measuring;
static uint64_t histogram[BUCKETS], response_count, received_bytes;
static int64_t latency_max_ns;
static char received[RECEIVE_BYTES];

static void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

static void *allocated(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (memory == NULL) fail("no memory for %zu x %zu bytes", count, size);
    return memory;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* ---- latencies */

static int bucket_of(uint64_t value) {
    if (value < STEPS) return (int)value;
    int shift = 63 - __builtin_clzll(value) - STEP_BITS;
    return (shift + 1) * STEPS + (int)((value >> shift) - STEPS);
}

static uint64_t bucket_end(int bucket) {
    if (bucket < STEPS) return (uint64_t)bucket;
    int shift = bucket / STEPS - 1;
    return ((uint64_t)(bucket % STEPS + STEPS + 1) << shift) - 1;
}

static double percentile_us(double share) {
    uint64_t rank = (uint64_t)(share * (double)response_count), seen = 0;
    if (rank >= response_count) rank = response_count - 1;
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        seen += histogram[bucket];
        if (seen > rank) {
            uint64_t end = bucket_end(bucket);
            return (double)(end < (uint64_t)latency_max_ns ? end : (uint64_t)latency_max_ns) / 1e3;
        }
    }
    return (double)latency_max_ns / 1e3;
}

/* ---- bytes, in plaintext or TLS: like send and recv, with EAGAIN if the socket is not ready */

#ifdef NO_TLS
static void *tls_connected(int fd) { fail("compiled without TLS (descriptor %d)", fd); }
static ssize_t tls_put(void *tls, const void *bytes, size_t count) { return tls == bytes ? 0 : (ssize_t)count; }
static ssize_t tls_take(void *tls, void *bytes, size_t count) { return tls == bytes ? 0 : (ssize_t)count; }
#else
static void *tls_connected(int fd) {
    static SSL_CTX *context;
    if (context == NULL) {
        context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        SSL_CTX_set_read_ahead(context, 1);
        SSL_CTX_set_default_read_buffer_len(context, 1 << 16);
    }
    SSL *tls = SSL_new(context);
    if (tls == NULL || SSL_set_fd(tls, fd) != 1 || SSL_connect(tls) != 1) fail("the TLS handshake failed");
    return tls;
}

static ssize_t tls_done(SSL *tls, int result, size_t count) {
    if (result == 1) return (ssize_t)count;
    int error = SSL_get_error(tls, result);
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
}

static ssize_t tls_put(void *tls, const void *bytes, size_t count) {
    size_t done = 0;
    int result = SSL_write_ex(tls, bytes, count, &done);
    return tls_done(tls, result, done);
}

static ssize_t tls_take(void *tls, void *bytes, size_t count) {
    size_t done = 0;
    int result = SSL_read_ex(tls, bytes, count, &done);
    return tls_done(tls, result, done);
}
#endif

static ssize_t put(struct connection *c, struct iovec *parts, size_t count) {
    if (c->tls != NULL) return tls_put(c->tls, parts[0].iov_base, parts[0].iov_len);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    return sendmsg(c->fd, &message, MSG_NOSIGNAL);
}

static ssize_t take(struct connection *c, void *bytes, size_t count) {
    return c->tls != NULL ? tls_take(c->tls, bytes, count) : recv(c->fd, bytes, count, 0);
}

/* ---- requests */

static uint32_t slot(uint32_t request) { return request % slots; }

static void ask(struct connection *c, int64_t due_ns) {
    uint32_t id = htobe32(c->asked);
    memcpy(c->ring + slot_at[slot(c->asked)] + 8, &id, sizeof id);
    c->due_ns[slot(c->asked)] = due_ns;
    c->asked++;
}

static void wait_to_send(struct connection *c, bool wanted) {
    if (c->waits_to_send == wanted) return;
    struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0u), .data.ptr = c};
    if (epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event) != 0) fail("epoll_ctl: %s", strerror(errno));
    c->waits_to_send = wanted;
}

/* Sends pending requests until the socket is full, with one call for both parts of the ring. */
static void send_asked(struct connection *c) {
    while (c->sent != c->asked) {
        uint32_t first = slot(c->sent), behind = first + (c->asked - c->sent);
        size_t begin = slot_at[first] + c->sent_of_next;
        struct iovec parts[2] = {{c->ring + begin, slot_at[behind < slots ? behind : slots] - begin}, {c->ring, 0}};
        if (behind > slots) parts[1].iov_len = slot_at[behind - slots];
        ssize_t count = put(c, parts, behind > slots ? 2 : 1);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) {
            wait_to_send(c, true);
            return;
        }
        if (count < 0) fail("send: %s", strerror(errno));
        for (size_t left = (size_t)count; left > 0;) {
            size_t size = slot_at[slot(c->sent) + 1] - slot_at[slot(c->sent)] - c->sent_of_next;
            if (left < size) {
                c->sent_of_next += left;
                break;
            }
            left -= size;
            c->sent_of_next = 0;
            c->sent++;
        }
    }
    wait_to_send(c, false);
}

/* ---- responses */

static uint32_t word(const unsigned char *bytes) {
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return be32toh(value);
}

static void finish_response(struct connection *c, int64_t now) {
    if (c->answered == c->sent) fail("a response without a request");
    uint32_t id = word(c->head + 4);
    if (id != c->answered) fail("expected the response to request %" PRIu32 ", found %" PRIu32, c->answered, id);
    if (settings.error_at >= 0) {
        if (c->response_got < head_bytes) fail("a response of %zu bytes has no error code", c->response_got - 4);
        int16_t code = (int16_t)(c->head[head_bytes - 2] << 8 | c->head[head_bytes - 1]);
        if (code != 0) fail("the server responded with error %d", code);
    }
    if (is_measuring) {
        int64_t latency_ns = now - c->due_ns[slot(c->answered)];
        histogram[bucket_of((uint64_t)latency_ns)]++;
        if (latency_ns > latency_max_ns) latency_max_ns = latency_ns;
        response_count++;
    }
    c->answered++;
    c->response_got = c->response_left = 0;
}

/* Keeps the head of each response and discards the rest, of any size. */
static void read_bytes(struct connection *c, const char *bytes, size_t count, int64_t now) {
    while (count > 0) {
        bool has_length = c->response_got >= 4;
        size_t wanted = has_length ? c->response_left : 4 - c->response_got;
        size_t taken = count < wanted ? count : wanted;
        if (c->response_got < head_bytes) {
            size_t room = head_bytes - c->response_got;
            memcpy(c->head + c->response_got, bytes, taken < room ? taken : room);
        }
        c->response_got += taken;
        bytes += taken;
        count -= taken;
        if (has_length) {
            c->response_left -= taken;
        } else if (c->response_got == 4) {
            uint32_t size = word(c->head);
            if (size < 4 || size > INT32_MAX) fail("a response of %" PRIu32 " bytes", size);
            c->response_left = size;
        }
        if (c->response_got > 4 && c->response_left == 0) finish_response(c, now);
    }
}

static void receive(struct connection *c) {
    for (;;) {
        /* The kernel discards the rest of a large response, so that the client is not slower than the server. */
        bool drops = c->tls == NULL && c->response_got >= head_bytes && c->response_left > sizeof received;
        size_t wanted = drops ? c->response_left : sizeof received;
        ssize_t count = drops ? recv(c->fd, NULL, wanted, MSG_TRUNC) : take(c, received, wanted);
        if (count == 0) fail("the server closed a connection");
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && errno == EAGAIN) return;
        if (count < 0) fail("recv: %s", strerror(errno));
        if (is_measuring) received_bytes += (uint64_t)count;
        if (drops) {
            c->response_got += (size_t)count;
            c->response_left -= (size_t)count;
            if (c->response_left == 0) finish_response(c, now_ns());
        } else {
            read_bytes(c, received, (size_t)count, now_ns());
        }
        if (c->tls == NULL && (size_t)count < wanted) return; /* epoll reports when there is more */
    }
}

/* ---- both loops */

/* Requests with their lengths, as in a file. */
struct requests {
    char *bytes;
    size_t size;
};

/* Returns the size of the request at a position, with its length. */
static size_t request_bytes(const struct requests *all, size_t at) {
    size_t left = all->size - at, size = left < 4 ? 0 : word((const unsigned char *)all->bytes + at);
    if (size < 8 || size > left - 4) fail("no request at byte %zu of %zu", at, all->size);
    return 4 + size;
}

/* Reads an exact number of bytes from a blocking socket. */
static void take_all(struct connection *c, void *into, size_t count) {
    for (size_t got = 0; got < count;) {
        ssize_t n = take(c, (char *)into + got, count - got);
        if (n <= 0) fail("no response to the first requests of a connection");
        got += (size_t)n;
    }
}

static void exchange(struct connection *c, const struct requests *first) {
    for (size_t at = 0, size; at < first->size; at += size) {
        unsigned char length[4];
        size = request_bytes(first, at);
        struct iovec part = {first->bytes + at, size};
        if (put(c, &part, 1) != (ssize_t)size) fail("cannot send the first requests of a connection");
        take_all(c, length, 4);
        for (size_t left = word(length), some; left > 0; left -= some) {
            some = left < sizeof received ? left : sizeof received;
            take_all(c, received, some);
        }
    }
}

static struct connection *connected(const char *ring_image, const struct requests *first) {
    struct connection *all = allocated((size_t)settings.connections, sizeof *all);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)settings.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < settings.connections; i++) {
        struct connection *c = &all[i];
        int one = 1;
        c->ring = allocated(1, slot_at[slots]);
        memcpy(c->ring, ring_image, slot_at[slots]);
        c->due_ns = allocated(slots, sizeof *c->due_ns);
        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0) fail("connect: %s", strerror(errno));
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (settings.has_tls) c->tls = tls_connected(c->fd);
        exchange(c, first);
        fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event) != 0) fail("epoll_ctl: %s", strerror(errno));
    }
    return all;
}

static bool has_room(const struct connection *c) { return c->asked - c->answered < (uint32_t)settings.in_flight; }

/* Assigns the due requests in turn to connections below their limit; returns the total of assigned requests. */
static uint64_t ask_due(struct connection *all, int64_t begun, int64_t now, uint64_t given) {
    static int turn;
    double interval_ns = 1e9 / settings.rate;
    int full = 0;
    while (full < settings.connections) {
        int64_t due_ns = begun + (int64_t)((double)given * interval_ns);
        if (due_ns > now) break;
        struct connection *c = &all[turn];
        turn = (turn + 1) % settings.connections;
        if (!has_room(c)) {
            full++;
            continue;
        }
        full = 0;
        ask(c, due_ns);
        send_asked(c);
        given++;
    }
    return given;
}

/* Returns the timeout of epoll in ms, which ends shortly before the next request is due; then epoll polls. */
static int sleep_ms(int64_t begun, uint64_t given, int64_t now) {
    int64_t left = begun + (int64_t)((double)given * 1e9 / settings.rate) - now;
    return left <= 0 ? 0 : left > INT64_C(100000000) ? 100 : (int)(left / 1000000);
}

static void run(struct connection *all) {
    int64_t begun = now_ns(), measured_from = begun + (int64_t)(settings.warm_up_s * 1e9), first = 0, last = 0;
    int64_t end = measured_from + (int64_t)(settings.seconds * 1e9);
    struct epoll_event events[EVENTS];
    uint64_t given = 0;
    if (settings.rate == 0) {
        for (int i = 0; i < settings.connections; i++) {
            int64_t now = now_ns();
            while (has_room(&all[i])) ask(&all[i], now);
            send_asked(&all[i]);
        }
    }
    for (;;) {
        int64_t now = now_ns();
        if (now >= end) break;
        if (!is_measuring && now >= measured_from) {
            is_measuring = true;
            first = now;
        }
        if (settings.rate > 0) given = ask_due(all, begun, now, given);
        int count = epoll_wait(poll_fd, events, EVENTS, settings.rate > 0 ? sleep_ms(begun, given, now) : 100);
        if (count < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
            if (settings.rate == 0 && has_room(c)) {
                int64_t answered_at = now_ns();
                while (has_room(c)) ask(c, answered_at);
            }
            send_asked(c);
        }
        last = now_ns();
    }
    if (response_count == 0) fail("no response within the measured %g s", settings.seconds);
    double taken_s = (double)(last - first) / 1e9;
    uint64_t due = settings.rate > 0 ? (uint64_t)((double)(end - begun) / 1e9 * settings.rate) : 0;
    printf("{\"requests\": %" PRIu64 ", \"requests_per_s\": %.0f, \"received_mb_per_s\": %.1f, \"p50_us\": %.1f, "
           "\"p90_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, \"not_sent\": %" PRIu64 "}\n",
           response_count, (double)response_count / taken_s, (double)received_bytes / taken_s / 1e6, percentile_us(.5),
           percentile_us(.9), percentile_us(.99), percentile_us(.999), (double)latency_max_ns / 1e3,
           due > given && settings.rate > 0 ? due - given : 0);
}

/* ---- the command line */

static struct requests read_requests(const char *name) {
    struct stat found;
    FILE *file = fopen(name, "rb");
    if (file == NULL || fstat(fileno(file), &found) != 0) fail("%s: %s", name, strerror(errno));
    struct requests all = {allocated(1, (size_t)found.st_size + 1), (size_t)found.st_size};
    if (fread(all.bytes, 1, all.size, file) != all.size) fail("%s: cannot read it", name);
    fclose(file);
    return all;
}

/* Returns the requests, repeated until each request in flight has a slot. */
static char *ring_of(const struct requests *all) {
    uint32_t count = 0;
    for (size_t at = 0; at < all->size; at += request_bytes(all, at)) count++;
    uint32_t repeats = ((uint32_t)settings.in_flight + count - 1) / count;
    slots = repeats * count;
    slot_at = allocated((size_t)slots + 1, sizeof *slot_at);
    char *ring = allocated(repeats, all->size);
    for (uint32_t i = 0; i < slots; i++) {
        if (i % count == 0) memcpy(ring + slot_at[i], all->bytes, all->size);
        slot_at[i + 1] = slot_at[i] + request_bytes(all, slot_at[i] % all->size);
    }
    return ring;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"port", required_argument, NULL, 'p'},      {"frame", required_argument, NULL, 'f'},
        {"connections", required_argument, NULL, 'c'}, {"in-flight", required_argument, NULL, 'i'},
        {"seconds", required_argument, NULL, 's'},   {"warm-up", required_argument, NULL, 'w'},
        {"rate", required_argument, NULL, 'r'},      {"error-at", required_argument, NULL, 'e'},
        {"first", required_argument, NULL, 'b'},     {"tls", no_argument, NULL, 't'},
        {NULL, 0, NULL, 0},
    };
    struct requests frames = {NULL, 0}, first = {NULL, 0};
    for (int found; (found = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (found) {
        case 'p': settings.port = atoi(optarg); break;
        case 'c': settings.connections = atoi(optarg); break;
        case 'i': settings.in_flight = atoi(optarg); break;
        case 's': settings.seconds = atof(optarg); break;
        case 'w': settings.warm_up_s = atof(optarg); break;
        case 'r': settings.rate = atof(optarg); break;
        case 'e': settings.error_at = atol(optarg); break;
        case 't': settings.has_tls = true; break;
        case 'b': first = read_requests(optarg); break;
        case 'f': frames = read_requests(optarg); break;
        default: return 2;
        }
    }
    bool is_usable = settings.port > 0 && settings.port < 65536 && frames.size > 0 && settings.connections > 0 &&
                     settings.in_flight > 0 && settings.in_flight <= 1 << 20 && settings.seconds > 0 &&
                     settings.warm_up_s >= 0 && settings.rate >= 0 && settings.error_at < HEAD_BYTES - 6;
    if (optind < argc || !is_usable) {
        fprintf(stderr, "usage: load --port P --frame FILE [--connections N] [--in-flight M] [--seconds S]"
                        " [--warm-up S] [--rate R] [--error-at K] [--first FILE] [--tls]\n");
        return 2;
    }
    head_bytes = settings.error_at < 0 ? 8 : 4 + (size_t)settings.error_at + 2;
    if (head_bytes < 8) head_bytes = 8;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (poll_fd < 0) fail("epoll_create1: %s", strerror(errno));
    run(connected(ring_of(&frames), &first));
    return 0;
}
