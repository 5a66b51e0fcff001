/* Upper limit of the throughput of one thread: epoll, without a queue and handlers. The response to a request (an int32
 * length, then that many bytes, the correlation id at 4 to 7) is its correlation id and BYTES zeros.
 *
 *   bare_loop [BYTES]      100 by default; listens on a free port of 127.0.0.1, prints the port, serves until killed */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_BYTES = 12, READ_BYTES = 1 << 16, MAX_BODY = 1 << 20, EVENTS = 256 };

struct connection {
    int fd;
    bool waits_to_send;
    size_t head_got, body_left; /* of the request that is being read */
    unsigned char head[HEAD_BYTES];
    char *out; /* responses that have not left yet: out[out_at .. out_end) of out_room */
    size_t out_at, out_end, out_room;
};

static int poll_fd, body_bytes = 100;
static char bytes_read[READ_BYTES];

static bool add_response(struct connection *c) {
    size_t size = 8 + (size_t)body_bytes;
    if (c->out_end + size > c->out_room) {
        size_t room = (c->out_end + size) * 2;
        char *grown = realloc(c->out, room);
        if (grown == NULL) return false;
        memset(grown + c->out_room, 0, room - c->out_room);
        c->out = grown;
        c->out_room = room;
    }
    uint32_t length = htobe32(4 + (uint32_t)body_bytes);
    memcpy(c->out + c->out_end, &length, 4);
    memcpy(c->out + c->out_end + 4, c->head + 8, 4);
    memset(c->out + c->out_end + 8, 0, (size_t)body_bytes);
    c->out_end += size;
    return true;
}

static bool read_requests(struct connection *c, const char *bytes, size_t count) {
    while (count > 0) {
        if (c->head_got < HEAD_BYTES) {
            size_t room = HEAD_BYTES - c->head_got, taken = count < room ? count : room;
            memcpy(c->head + c->head_got, bytes, taken);
            c->head_got += taken;
            bytes += taken;
            count -= taken;
            if (c->head_got < HEAD_BYTES) break;
            uint32_t length;
            memcpy(&length, c->head, 4);
            length = be32toh(length);
            if (length < HEAD_BYTES - 4 || length > INT32_MAX) return false;
            c->body_left = length - (HEAD_BYTES - 4);
        }
        size_t skipped = count < c->body_left ? count : c->body_left;
        c->body_left -= skipped;
        bytes += skipped;
        count -= skipped;
        if (c->body_left > 0) break;
        c->head_got = 0;
        if (!add_response(c)) return false;
    }
    return true;
}

static bool send_responses(struct connection *c) {
    bool is_full = false;
    while (c->out_at < c->out_end && !is_full) {
        ssize_t count = send(c->fd, c->out + c->out_at, c->out_end - c->out_at, MSG_NOSIGNAL);
        if (count >= 0) c->out_at += (size_t)count;
        else if (errno == EAGAIN) is_full = true;
        else if (errno != EINTR) return false;
    }
    if (!is_full) c->out_at = c->out_end = 0;
    if (is_full != c->waits_to_send) {
        struct epoll_event event = {.events = EPOLLIN | (is_full ? EPOLLOUT : 0u), .data.ptr = c};
        epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
        c->waits_to_send = is_full;
    }
    return true;
}

static bool serve(struct connection *c, uint32_t events) {
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        ssize_t count = recv(c->fd, bytes_read, sizeof bytes_read, 0);
        if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (count > 0 && !read_requests(c, bytes_read, (size_t)count)) return false;
    }
    return send_responses(c);
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct connection *c = calloc(1, sizeof *c);
        if (c == NULL) {
            close(fd);
            return;
        }
        c->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) body_bytes = atoi(argv[1]);
    if (argc > 2 || body_bytes < 0 || body_bytes > MAX_BODY) {
        fputs("usage: bare_loop [BYTES]\n", stderr);
        return 2;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 4096) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0) {
        perror("bare_loop");
        return 1;
    }
    struct epoll_event events[EVENTS], accepting = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &accepting);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(poll_fd, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            struct connection *c = events[i].data.ptr;
            if (c == NULL) {
                accept_all(listener);
            } else if (!serve(c, events[i].events)) {
                close(c->fd);
                free(c->out);
                free(c);
            }
        }
    }
}
