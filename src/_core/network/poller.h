/* Readiness of sockets: epoll on Linux, kqueue on macOS and the BSDs. Level-triggered; interest 0 means not registered.
 * A wake-up from another thread needs no read: the eventfd is edge-triggered, the kqueue user event clears itself.
 * Where neither exists (Windows) KB_NATIVE_POLLER is 0 and only the portable poller works. */
#ifndef KBROKER_POLLER_H
#define KBROKER_POLLER_H
#include <errno.h>
#include <stdint.h>
#include <string.h>

enum { KB_READ = 1, KB_WRITE = 2, KB_HANGUP = 4, KB_MAX_EVENTS = 512 };
typedef struct { void *tag; int mask; } kb_event;
typedef struct { int fd; int wake_fd; } kb_poller;

#if defined(__linux__)
#define KB_NATIVE_POLLER 1
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
static inline const char *kb_poller_name(void) { return "epoll"; }
static inline int kb_poller_open(kb_poller *p) {
    struct epoll_event e;
    p->wake_fd = -1;
    p->fd = epoll_create1(EPOLL_CLOEXEC);
    if (p->fd < 0) return -errno;
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    memset(&e, 0, sizeof e);
    e.events = EPOLLIN | EPOLLET;
    if (p->wake_fd < 0 || epoll_ctl(p->fd, EPOLL_CTL_ADD, p->wake_fd, &e) < 0) {
        int why = errno;
        if (p->wake_fd >= 0) close(p->wake_fd);
        close(p->fd);
        p->fd = p->wake_fd = -1;
        return -why;
    }
    return 0;
}
static inline void kb_poller_close(kb_poller *p) {
    if (p->wake_fd >= 0) close(p->wake_fd);
    if (p->fd >= 0) close(p->fd);
    p->fd = p->wake_fd = -1;
}
static inline int kb_poller_set(kb_poller *p, int fd, void *tag, int before, int after) {
    struct epoll_event e;
    int op = before == 0 ? EPOLL_CTL_ADD : after == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    if (before == after) return 0;
    memset(&e, 0, sizeof e);
    e.events = (after & KB_READ ? EPOLLIN : 0) | (after & KB_WRITE ? EPOLLOUT : 0);
    e.data.ptr = tag;
    return epoll_ctl(p->fd, op, fd, &e) < 0 ? -errno : 0;
}
static inline int kb_poller_wait(kb_poller *p, kb_event *out, int max, int64_t timeout_ns) {
    struct epoll_event ev[KB_MAX_EVENTS];
    int64_t wait_ms = timeout_ns <= 0 ? 0 : (timeout_ns - 1) / 1000000 + 1;
    int i, k = 0, n, ms = wait_ms > 3600000 ? 3600000 : (int)wait_ms;
    if (max > KB_MAX_EVENTS) max = KB_MAX_EVENTS;
    n = epoll_wait(p->fd, ev, max, ms);
    if (n < 0) return errno == EINTR ? 0 : -errno;
    for (i = 0; i < n; i++) {
        if (ev[i].data.ptr == 0) continue; /* the wake-up */
        out[k].tag = ev[i].data.ptr;
        out[k++].mask = (ev[i].events & EPOLLIN ? KB_READ : 0) | (ev[i].events & EPOLLOUT ? KB_WRITE : 0)
                      | (ev[i].events & (EPOLLHUP | EPOLLERR) ? KB_HANGUP : 0);
    }
    return k;
}
static inline void kb_poller_wake(kb_poller *p) {
    uint64_t one = 1;
    while (write(p->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}
#elif defined(__APPLE__) || defined(__FreeBSD__) || defined(__NetBSD__) || defined(__OpenBSD__) || defined(__DragonFly__)
#define KB_NATIVE_POLLER 1
#include <fcntl.h>
#include <sys/event.h>
#include <sys/time.h>
#include <sys/types.h>
#include <unistd.h>
static inline const char *kb_poller_name(void) { return "kqueue"; }
static inline int kb_poller_open(kb_poller *p) {
    struct kevent e;
    p->wake_fd = -1;
    p->fd = kqueue();
    if (p->fd < 0) return -errno;
    fcntl(p->fd, F_SETFD, FD_CLOEXEC);
    EV_SET(&e, 1, EVFILT_USER, EV_ADD | EV_CLEAR, 0, 0, 0);
    if (kevent(p->fd, &e, 1, 0, 0, 0) < 0) {
        int why = errno;
        close(p->fd);
        p->fd = -1;
        return -why;
    }
    return 0;
}
static inline void kb_poller_close(kb_poller *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
}
static inline int kb_poller_set(kb_poller *p, int fd, void *tag, int before, int after) {
    struct kevent e[2];
    int n = 0;
    if ((before ^ after) & KB_READ) EV_SET(&e[n++], fd, EVFILT_READ, after & KB_READ ? EV_ADD : EV_DELETE, 0, 0, tag);
    if ((before ^ after) & KB_WRITE) EV_SET(&e[n++], fd, EVFILT_WRITE, after & KB_WRITE ? EV_ADD : EV_DELETE, 0, 0, tag);
    if (n == 0) return 0;
    while (kevent(p->fd, e, n, 0, 0, 0) < 0) if (errno != EINTR) return -errno;
    return 0;
}
static inline int kb_poller_wait(kb_poller *p, kb_event *out, int max, int64_t timeout_ns) {
    struct kevent ev[KB_MAX_EVENTS];
    struct timespec t;
    int i, k = 0, n;
    if (timeout_ns < 0) timeout_ns = 0;
    t.tv_sec = (time_t)(timeout_ns / 1000000000);
    t.tv_nsec = (long)(timeout_ns % 1000000000);
    if (max > KB_MAX_EVENTS) max = KB_MAX_EVENTS;
    n = kevent(p->fd, 0, 0, ev, max, &t);
    if (n < 0) return errno == EINTR ? 0 : -errno;
    for (i = 0; i < n; i++) {
        if (ev[i].filter == EVFILT_USER) continue;
        out[k].tag = ev[i].udata;
        out[k].mask = ev[i].filter == EVFILT_READ ? KB_READ : KB_WRITE; /* EV_EOF shows as a read of 0 or EPIPE */
        if (ev[i].flags & EV_EOF && ev[i].fflags != 0) out[k].mask |= KB_HANGUP; /* the error of a reset */
        k++;
    }
    return k;
}
static inline void kb_poller_wake(kb_poller *p) {
    struct kevent e;
    EV_SET(&e, 1, EVFILT_USER, 0, NOTE_TRIGGER, 0, 0);
    while (kevent(p->fd, &e, 1, 0, 0, 0) < 0 && errno == EINTR) {}
}
#else
#define KB_NATIVE_POLLER 0
static inline const char *kb_poller_name(void) { return ""; }
static inline int kb_poller_open(kb_poller *p) { p->fd = p->wake_fd = -1; return -1; }
static inline void kb_poller_close(kb_poller *p) { (void)p; }
static inline int kb_poller_set(kb_poller *p, int fd, void *tag, int before, int after) {
    (void)p; (void)fd; (void)tag; (void)before; (void)after;
    return -1;
}
static inline int kb_poller_wait(kb_poller *p, kb_event *out, int max, int64_t timeout_ns) {
    (void)p; (void)out; (void)max; (void)timeout_ns;
    return -1;
}
static inline void kb_poller_wake(kb_poller *p) { (void)p; }
#endif
#endif
