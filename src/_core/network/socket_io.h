/* System calls on sockets and files with one convention: n > 0 bytes done, 0 end, KB_AGAIN would block, KB_FAILED error.
 * Every call loops on EINTR; no call raises SIGPIPE in a thread that ran kb_block_signals. */
#ifndef KBROKER_SOCKET_IO_H
#define KBROKER_SOCKET_IO_H
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "thread_setup.h"

enum { KB_AGAIN = -1, KB_FAILED = -2, KB_NO_DESCRIPTORS = -3, KB_WANT_WRITE = -4, KB_REFUSED = -5, KB_MAX_PIECES = 64,
       KB_JOINED_BYTES = 4096, KB_HOST_BYTES = 64, KB_MOST_FILES = 16384 };

#ifndef _WIN32
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#if defined(__linux__)
#include <malloc.h>
#include <sys/sendfile.h>
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif
#ifndef MSG_MORE
#define MSG_MORE 0
#endif
typedef struct iovec kb_piece;
static inline void kb_piece_set(kb_piece *p, const char *data, int64_t n) { p->iov_base = (void *)data; p->iov_len = (size_t)n; }
static inline const char *kb_piece_data(const kb_piece *p) { return (const char *)p->iov_base; }
static inline int64_t kb_piece_bytes(const kb_piece *p) { return (int64_t)p->iov_len; }
static inline int64_t kb_io_result(ssize_t n) { return n >= 0 ? n : (errno == EAGAIN || errno == EWOULDBLOCK) ? KB_AGAIN : KB_FAILED; }
static inline int64_t kb_receive(int fd, char *into, int64_t n) {
    ssize_t r;
    do r = recv(fd, into, (size_t)n, 0); while (r < 0 && errno == EINTR);
    return kb_io_result(r);
}
/* Copies small pieces into one, which costs less than separate ones in the system. Returns 0 if large or empty. */
static inline size_t kb_join(const kb_piece *pieces, int count, char *joined) {
    size_t total = 0, at = 0;
    int i;
    for (i = 0; i < count; i++) total += pieces[i].iov_len;
    if (total > KB_JOINED_BYTES) return 0;
    for (i = 0; i < count; at += pieces[i++].iov_len) memcpy(joined + at, pieces[i].iov_base, pieces[i].iov_len);
    return total;
}
static inline int64_t kb_send(int fd, kb_piece *pieces, int count, int more) {
    char joined[KB_JOINED_BYTES];
    ssize_t r;
    struct msghdr m;
    int flags = MSG_NOSIGNAL | (more ? MSG_MORE : 0);
    const char *data = count == 1 ? (const char *)pieces[0].iov_base : joined;
    size_t total = count == 1 ? pieces[0].iov_len : kb_join(pieces, count, joined);
    memset(&m, 0, sizeof m);
    m.msg_iov = pieces;
    m.msg_iovlen = count;
    do r = total > 0 ? send(fd, data, total, flags) : sendmsg(fd, &m, flags); while (r < 0 && errno == EINTR);
    return kb_io_result(r);
}
static inline int64_t kb_pread(int fd, char *into, int64_t n, int64_t at) {
    ssize_t r;
    do r = pread(fd, into, (size_t)n, (off_t)at); while (r < 0 && errno == EINTR);
    return r < 0 ? KB_FAILED : r;
}
static inline int64_t kb_send_file(int out, int in, int64_t at, int64_t n) {
#if defined(__linux__)
    off_t from = (off_t)at;
    ssize_t r;
    if (n > (1 << 30)) n = 1 << 30;
    do r = sendfile(out, in, &from, (size_t)n); while (r < 0 && errno == EINTR);
    return kb_io_result(r);
#elif defined(__APPLE__)
    off_t sent = (off_t)n;
    int r = sendfile(in, out, (off_t)at, &sent, 0, 0);
    if (r == 0 || ((errno == EAGAIN || errno == EINTR) && sent > 0)) return sent;
    return errno == EAGAIN || errno == EINTR ? KB_AGAIN : KB_FAILED;
#else
    char chunk[65536];
    kb_piece p;
    int64_t r = kb_pread(in, chunk, n < (int64_t)sizeof chunk ? n : (int64_t)sizeof chunk, at);
    if (r <= 0) return r;
    kb_piece_set(&p, chunk, r);
    return kb_send(out, &p, 1, 0);
#endif
}
/* A child made by fork has copies of our sockets: while it runs, only shutdown ends a connection. In the child itself
 * the sockets belong to the parent, which still serves them: there they are only closed. */
static pid_t kb_home;
__attribute__((constructor)) static void kb_note_home(void) { kb_home = getpid(); }
static inline void kb_close_socket(int fd) {
    if (getpid() == kb_home) shutdown(fd, SHUT_RDWR);
    close(fd);
}
static inline int kb_has_unread(int fd) {
    int n = 0;
    return ioctl(fd, FIONREAD, &n) < 0 || n > 0;
}
static inline int kb_take_error(int fd) { /* of a reset; the call clears it */
    int error = 0;
    socklen_t n = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error != 0;
}
static inline int kb_prepare_socket(int fd) {
    int flags = fcntl(fd, F_GETFL, 0);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) return -1;
#ifdef SO_NOSIGPIPE
    { int one = 1; setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one); }
#endif
    return fcntl(fd, F_SETFD, FD_CLOEXEC);
}
static inline int kb_accept(int listener) {
    int fd;
#if defined(__linux__) || defined(__FreeBSD__)
    do fd = accept4(listener, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC); while (fd < 0 && errno == EINTR);
#else
    do fd = accept(listener, 0, 0); while (fd < 0 && errno == EINTR);
    if (fd >= 0 && kb_prepare_socket(fd) < 0) { close(fd); return KB_FAILED; }
#endif
    if (fd >= 0) return fd;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return KB_AGAIN;
    return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ? KB_NO_DESCRIPTORS : KB_FAILED;
}
static inline int kb_descriptors_for_sockets(void) { /* the rest is kept for files */
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY || r.rlim_cur > 1 << 20) r.rlim_cur = 1 << 20;
    return (int)(r.rlim_cur - (r.rlim_cur < KB_MOST_FILES * 4 ? r.rlim_cur / 4 : KB_MOST_FILES) - r.rlim_cur / 16);
}
static inline int kb_lowest_free_descriptor(int any_open) { /* all below it are in use */
    int fd = fcntl(any_open, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return INT_MAX;
    close(fd);
    return fd;
}
static inline void kb_tune_socket(int fd, int send_buffer_bytes) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    if (send_buffer_bytes > 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof send_buffer_bytes);
}
static inline void kb_address(int fd, int peer, char *host, int *port) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    memset(&a, 0, sizeof a);
    strcpy(host, "?");
    *port = 0;
    if ((peer ? getpeername(fd, (struct sockaddr *)&a, &n) : getsockname(fd, (struct sockaddr *)&a, &n)) < 0) return;
    if (a.ss_family == AF_INET) {
        inet_ntop(AF_INET, &((struct sockaddr_in *)&a)->sin_addr, host, KB_HOST_BYTES);
        *port = ntohs(((struct sockaddr_in *)&a)->sin_port);
    } else if (a.ss_family == AF_INET6) {
        struct sockaddr_in6 *six = (struct sockaddr_in6 *)&a;
        if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) inet_ntop(AF_INET, (char *)&six->sin6_addr + 12, host, KB_HOST_BYTES);
        else inet_ntop(AF_INET6, &six->sin6_addr, host, KB_HOST_BYTES);
        *port = ntohs(six->sin6_port);
    } else {
        strcpy(host, "local");
    }
}
#else /* Windows: enough for the portable loop; not compiled or tested anywhere yet */
#include <winsock2.h>
#include <ws2tcpip.h>
#include <io.h>
typedef WSABUF kb_piece;
static inline void kb_piece_set(kb_piece *p, const char *data, int64_t n) { p->buf = (char *)data; p->len = (ULONG)n; }
static inline const char *kb_piece_data(const kb_piece *p) { return p->buf; }
static inline int64_t kb_piece_bytes(const kb_piece *p) { return (int64_t)p->len; }
static inline int64_t kb_io_result(int64_t n) { return n >= 0 ? n : WSAGetLastError() == WSAEWOULDBLOCK ? KB_AGAIN : KB_FAILED; }
static inline int64_t kb_receive(int fd, char *into, int64_t n) { return kb_io_result(recv((SOCKET)fd, into, (int)(n > (1 << 30) ? 1 << 30 : n), 0)); }
static inline int64_t kb_send(int fd, kb_piece *pieces, int count, int more) {
    DWORD sent = 0;
    (void)more;
    return kb_io_result(WSASend((SOCKET)fd, pieces, (DWORD)count, &sent, 0, 0, 0) == 0 ? (int64_t)sent : -1);
}
static inline int64_t kb_pread(int fd, char *into, int64_t n, int64_t at) {
    int r = _lseeki64(fd, at, SEEK_SET) < 0 ? -1 : _read(fd, into, (unsigned)(n > (1 << 30) ? 1 << 30 : n));
    return r < 0 ? KB_FAILED : r;
}
static inline int64_t kb_send_file(int out, int in, int64_t at, int64_t n) {
    static const int CHUNK = 65536;
    char chunk[65536];
    kb_piece p;
    int64_t r = kb_pread(in, chunk, n < CHUNK ? n : CHUNK, at);
    if (r <= 0) return r;
    kb_piece_set(&p, chunk, r);
    return kb_send(out, &p, 1, 0);
}
static inline void kb_close_socket(int fd) { closesocket((SOCKET)fd); }
static inline int kb_has_unread(int fd) {
    u_long n = 0;
    return ioctlsocket((SOCKET)fd, FIONREAD, &n) != 0 || n > 0;
}
static inline int kb_take_error(int fd) {
    int error = 0, n = sizeof error;
    return getsockopt((SOCKET)fd, SOL_SOCKET, SO_ERROR, (char *)&error, &n) == 0 && error != 0;
}
static inline int kb_prepare_socket(int fd) { u_long on = 1; return ioctlsocket((SOCKET)fd, FIONBIO, &on); }
static inline int kb_accept(int listener) {
    SOCKET s = accept((SOCKET)listener, 0, 0);
    if (s == INVALID_SOCKET) return WSAGetLastError() == WSAEWOULDBLOCK ? KB_AGAIN : WSAGetLastError() == WSAEMFILE ? KB_NO_DESCRIPTORS : KB_FAILED;
    if (kb_prepare_socket((int)s) != 0) { closesocket(s); return KB_FAILED; }
    return (int)s;
}
static inline int kb_descriptors_for_sockets(void) { return INT_MAX; }
static inline int kb_lowest_free_descriptor(int any_open) { (void)any_open; return 0; }
static inline void kb_tune_socket(int fd, int send_buffer_bytes) {
    int one = 1;
    setsockopt((SOCKET)fd, IPPROTO_TCP, TCP_NODELAY, (char *)&one, sizeof one);
    setsockopt((SOCKET)fd, SOL_SOCKET, SO_KEEPALIVE, (char *)&one, sizeof one);
    if (send_buffer_bytes > 0) setsockopt((SOCKET)fd, SOL_SOCKET, SO_SNDBUF, (char *)&send_buffer_bytes, sizeof send_buffer_bytes);
}
static inline void kb_address(int fd, int peer, char *host, int *port) {
    struct sockaddr_storage a;
    int n = sizeof a;
    memset(&a, 0, sizeof a);
    strcpy(host, "?");
    *port = 0;
    if ((peer ? getpeername((SOCKET)fd, (struct sockaddr *)&a, &n) : getsockname((SOCKET)fd, (struct sockaddr *)&a, &n)) != 0) return;
    if (a.ss_family == AF_INET) {
        inet_ntop(AF_INET, &((struct sockaddr_in *)&a)->sin_addr, host, KB_HOST_BYTES);
        *port = ntohs(((struct sockaddr_in *)&a)->sin_port);
    } else if (a.ss_family == AF_INET6) {
        inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&a)->sin6_addr, host, KB_HOST_BYTES);
        *port = ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    }
}
#endif
#endif
