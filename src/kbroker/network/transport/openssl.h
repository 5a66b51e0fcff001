/* TLS of an established connection by OpenSSL's own functions, without the GIL.
 *
 * The interpreter's ssl module makes the contexts and connections and performs handshakes. Its OpenSSL is found through
 * the module's file; records are then read and written through a BIO that uses the channel's socket. Where that library
 * cannot be found (OpenSSL linked into the interpreter, Windows, a later layout of the module's objects) kb_openssl_load
 * returns 0, and all goes through the module's methods. */
#ifndef KBROKER_OPENSSL_H
#define KBROKER_OPENSSL_H
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include "network/socket_io.h"

typedef struct {
    void *ssl;  /* SSL: borrowed from the module's connection */
    int fd;
    int more;   /* another record follows the one that is written */
    int ended;  /* the socket has reached its end */
    int failed; /* the socket has failed */
} kb_tls;

#if !defined(_WIN32) && !defined(Py_GIL_DISABLED) && PY_VERSION_HEX < 0x030F0000
#include <dlfcn.h>

#define KB_OPENSSL_FUNCTIONS(F) \
    F(void *, BIO_meth_new, (int, const char *)) \
    F(int, BIO_meth_set_read_ex, (void *, int (*)(void *, char *, size_t, size_t *))) \
    F(int, BIO_meth_set_write_ex, (void *, int (*)(void *, const char *, size_t, size_t *))) \
    F(int, BIO_meth_set_ctrl, (void *, long (*)(void *, int, long, void *))) \
    F(void *, BIO_new, (void *)) \
    F(void, BIO_set_data, (void *, void *)) \
    F(void *, BIO_get_data, (void *)) \
    F(void, BIO_set_init, (void *, int)) \
    F(void, BIO_set_flags, (void *, int)) \
    F(void, BIO_clear_flags, (void *, int)) \
    F(void, SSL_set_bio, (void *, void *, void *)) \
    F(void *, SSL_get_SSL_CTX, (void *)) \
    F(long, SSL_ctrl, (void *, int, long, void *)) \
    F(void, SSL_set_read_ahead, (void *, int)) \
    F(void, SSL_set_default_read_buffer_len, (void *, size_t)) \
    F(int, SSL_read_ex, (void *, void *, size_t, size_t *)) \
    F(int, SSL_write_ex, (void *, const void *, size_t, size_t *)) \
    F(int, SSL_has_pending, (const void *)) \
    F(int, SSL_get_error, (const void *, int)) \
    F(void, ERR_clear_error, (void)) \
    F(unsigned long, ERR_peek_last_error, (void)) \
    F(const char *, ERR_reason_error_string, (unsigned long))

#define KB_DECLARE(type, name, arguments) type(*name) arguments;
static struct { KB_OPENSSL_FUNCTIONS(KB_DECLARE) void *socket_method; } kb_openssl;

enum { KB_BIO_RETRY = 8, KB_BIO_READS = 1, KB_BIO_WRITES = 2, KB_BIO_ALL = 15, KB_BIO_FLUSH = 11, KB_BIO_SOURCE = 0x400,
       KB_SSL_WANT_READ = 2, KB_SSL_WANT_WRITE = 3, KB_SSL_ZERO_RETURN = 6, KB_SSL_CTRL_MODE = 33,
       KB_SSL_PARTIAL_WRITE = 1, KB_SSL_MOVING_BUFFER = 2 };

/* The first fields of the ssl module's objects, the same in CPython 3.10 to 3.14. */
typedef struct { PyObject_HEAD void *ctx; } kb_ssl_context;
typedef struct { PyObject_HEAD PyObject *socket; void *ssl; } kb_ssl_connection;

static int kb_bio_read(void *bio, char *into, size_t size, size_t *got) {
    kb_tls *tls = (kb_tls *)kb_openssl.BIO_get_data(bio);
    int64_t n = kb_receive(tls->fd, into, (int64_t)size);
    kb_openssl.BIO_clear_flags(bio, KB_BIO_ALL);
    *got = n > 0 ? (size_t)n : 0;
    if (n == KB_AGAIN) kb_openssl.BIO_set_flags(bio, KB_BIO_READS | KB_BIO_RETRY);
    if (n == 0) tls->ended = 1;
    if (n == KB_FAILED) tls->failed = 1;
    return n > 0;
}

static int kb_bio_write(void *bio, const char *bytes, size_t size, size_t *sent) {
    kb_tls *tls = (kb_tls *)kb_openssl.BIO_get_data(bio);
    kb_piece piece;
    kb_piece_set(&piece, bytes, (int64_t)size);
    int64_t n = kb_send(tls->fd, &piece, 1, tls->more);
    kb_openssl.BIO_clear_flags(bio, KB_BIO_ALL);
    *sent = n > 0 ? (size_t)n : 0;
    if (n == KB_AGAIN) kb_openssl.BIO_set_flags(bio, KB_BIO_WRITES | KB_BIO_RETRY);
    if (n == KB_FAILED) tls->failed = 1;
    return n > 0;
}

static long kb_bio_control(void *bio, int command, long number, void *data) {
    (void)bio, (void)number, (void)data;
    return command == KB_BIO_FLUSH;
}

/* Find the functions in the library of the ssl module, whose file is `path`. Return 1 if it has all of them. */
static int kb_openssl_load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) return 0;
#define KB_FIND(type, name, arguments) \
    if ((kb_openssl.name = (type(*) arguments)dlsym(library, #name)) == NULL) return 0;
    KB_OPENSSL_FUNCTIONS(KB_FIND)
    void *method = kb_openssl.BIO_meth_new(KB_BIO_SOURCE | 100, "kbroker channel");
    if (method == NULL) return 0;
    kb_openssl.BIO_meth_set_read_ex(method, kb_bio_read);
    kb_openssl.BIO_meth_set_write_ex(method, kb_bio_write);
    kb_openssl.BIO_meth_set_ctrl(method, kb_bio_control);
    kb_openssl.socket_method = method;
    return 1;
}

/* Let a new connection of the module use the socket. Return 1; 0 if memory is exhausted, or the layout differs. */
static int kb_tls_attach(kb_tls *tls, PyObject *context, PyObject *connection, size_t read_bytes) {
    void *ssl = ((kb_ssl_connection *)connection)->ssl;
    if (kb_openssl.SSL_get_SSL_CTX(ssl) != ((kb_ssl_context *)context)->ctx) return 0;
    void *bio = kb_openssl.BIO_new(kb_openssl.socket_method);
    if (bio == NULL) return 0;
    kb_openssl.BIO_set_data(bio, tls);
    kb_openssl.BIO_set_init(bio, 1);
    kb_openssl.SSL_set_bio(ssl, bio, bio);
    kb_openssl.SSL_ctrl(ssl, KB_SSL_CTRL_MODE, KB_SSL_PARTIAL_WRITE | KB_SSL_MOVING_BUFFER, NULL);
    kb_openssl.SSL_set_default_read_buffer_len(ssl, read_bytes);
    kb_openssl.SSL_set_read_ahead(ssl, 1);
    tls->ssl = ssl;
    return 1;
}

static inline int64_t kb_tls_result(kb_tls *tls, int done, size_t count) {
    if (done) return (int64_t)count;
    int error = kb_openssl.SSL_get_error(tls->ssl, done);
    if (error == KB_SSL_WANT_READ || error == KB_SSL_WANT_WRITE) return KB_AGAIN;
    return error == KB_SSL_ZERO_RETURN || (tls->ended && !tls->failed) ? 0 : KB_FAILED;
}

static inline int64_t kb_tls_read(kb_tls *tls, char *into, int64_t size) {
    size_t got = 0;
    kb_openssl.ERR_clear_error();
    int done = kb_openssl.SSL_read_ex(tls->ssl, into, (size_t)size, &got);
    return kb_tls_result(tls, done, got);
}

/* Write one record. After KB_AGAIN the next call must begin with the same bytes. */
static inline int64_t kb_tls_write(kb_tls *tls, const char *bytes, int64_t size, int more) {
    size_t sent = 0;
    tls->more = more;
    kb_openssl.ERR_clear_error();
    int done = kb_openssl.SSL_write_ex(tls->ssl, bytes, (size_t)size, &sent);
    int64_t result = kb_tls_result(tls, done, sent);
    return result == 0 ? KB_FAILED : result;
}

static inline int kb_tls_has_pending(kb_tls *tls) { return kb_openssl.SSL_has_pending(tls->ssl); }

/* The reason why a call of this thread has just failed; NULL: the socket has failed. */
static inline const char *kb_tls_reason(kb_tls *tls) {
    return tls->failed ? NULL : kb_openssl.ERR_reason_error_string(kb_openssl.ERR_peek_last_error());
}

#else
static int kb_openssl_load(const char *path) { return (void)path, 0; }
static int kb_tls_attach(kb_tls *tls, PyObject *context, PyObject *connection, size_t read_bytes) {
    return (void)tls, (void)context, (void)connection, (void)read_bytes, 0;
}
static inline int64_t kb_tls_read(kb_tls *tls, char *into, int64_t size) { return (void)tls, (void)into, (void)size, KB_FAILED; }
static inline int64_t kb_tls_write(kb_tls *tls, const char *bytes, int64_t size, int more) {
    return (void)tls, (void)bytes, (void)size, (void)more, KB_FAILED;
}
static inline int kb_tls_has_pending(kb_tls *tls) { return (void)tls, 0; }
static inline const char *kb_tls_reason(kb_tls *tls) { return (void)tls, (const char *)NULL; }
#endif
#endif
