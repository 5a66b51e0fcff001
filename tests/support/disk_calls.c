/* System calls on a folder that fail or wait on demand, and a record of the calls that change it, for tests. Linux only.
 *
 * LD_PRELOAD=disk_calls.so DISK_CALLS=FILE: FILE has struct control, which the test maps too. `disk_calls.py` beside this
 * file has the same numbers.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4, RENAME = 8, OPEN = 16, UNLINK = 32, MKDIR = 64 };
enum { FAIL = 1, SHORT = 2, BLOCK = 3 };

struct control {
    int64_t calls;        /* bits of the counted calls; 0: none */
    int64_t action;
    int64_t error;        /* errno of FAIL */
    int64_t first, times; /* number of the first counted call with the action, from 1, and of such calls */
    int64_t counted, failed;
    int64_t is_recording;
    char part[256];       /* part of the paths of counted calls; "": any path below root */
    char root[512];       /* the folder */
    char record[512];     /* file of the record */
};

static struct control *control;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the record, which has the calls in order */
static int record_fd = -1;
static __thread int is_inside;

#define REAL(type, name, parameters)                              \
    static type(*real) parameters;                                \
    if (real == NULL)                                             \
        real = (type(*) parameters)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void map_control(void)
{
    const char *path = getenv("DISK_CALLS");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (fd >= 0)
        close(fd);
    if (mapped != MAP_FAILED)
        control = mapped;
}

static int is_active(void) { return control != NULL && !is_inside && (control->calls || control->is_recording); }

static int is_below_root(const char *path)
{
    size_t size = strlen(control->root);
    return strncmp(path, control->root, size) == 0 && (path[size] == '/' || path[size] == 0);
}

/* Write the absolute path of a descriptor, or of a name relative to a folder's descriptor. */
static void path_at(int fd, const char *name, char *out, size_t capacity)
{
    char link[64];
    ssize_t size;

    if (name != NULL && (name[0] == '/' || fd == AT_FDCWD)) {
        snprintf(out, capacity, "%s", name);
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, out, capacity - 1);
    out[size > 0 ? size : 0] = 0;
    if (name != NULL)
        snprintf(out + strlen(out), capacity - strlen(out), "/%s", name);
}

/* Count a call; return the action for the call, or 0. BLOCK is over when this returns. */
static int due(int call, const char *path)
{
    int64_t number;

    if (!(control->calls & call) || !is_below_root(path) || strstr(path, control->part) == NULL)
        return 0;
    number = __sync_add_and_fetch(&control->counted, 1);
    if (number < control->first || number - control->first >= control->times)
        return 0;
    __sync_add_and_fetch(&control->failed, 1);
    if (control->action != BLOCK)
        return (int)control->action;
    while (*(volatile int64_t *)&control->calls & call)
        usleep(1000);
    return 0;
}

static int is_failing(int call, const char *path)
{
    if (due(call, path) == 0)
        return 0;
    errno = (int)control->error;
    return 1;
}

static void begin(void)
{
    is_inside = 1;
    if (control->is_recording)
        pthread_mutex_lock(&lock);
}

/* Append an entry to the record: a line, and the bytes of a write. */
static void end(int is_made, const char *operation, const char *path, const char *other, int64_t at, int64_t size,
                const void *data)
{
    char line[2048];
    int saved = errno, length;

    if (control->is_recording) {
        if (is_made && is_below_root(path)) {
            if (record_fd < 0)
                record_fd = open(control->record, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
            length = snprintf(line, sizeof line, "%s %s %s %lld %lld\n", operation, path, other, (long long)at,
                              (long long)size);
            if (write(record_fd, line, (size_t)length) != length || (data && write(record_fd, data, (size_t)size) != size))
                abort();
        }
        pthread_mutex_unlock(&lock);
    }
    errno = saved;
    is_inside = 0;
}

/* Record an event of the test, such as an acknowledgement, in the order of the calls. */
void disk_mark(const char *text)
{
    if (control == NULL)
        return;
    begin();
    end(1, "mark", control->root, text, 0, 0, NULL);
}

#define PATH_OF(fd, name)    \
    char path[4096];         \
    path_at(fd, name, path, sizeof path)

#define WRITING(name, parameters, arguments, short_arguments, size, position)                      \
    ssize_t name parameters                                                                        \
    {                                                                                              \
        REAL(ssize_t, name, parameters);                                                           \
        if (!is_active())                                                                          \
            return real arguments;                                                                 \
        PATH_OF(fd, NULL);                                                                         \
        int action = due(WRITE, path);                                                             \
        if (action == FAIL) {                                                                      \
            errno = (int)control->error;                                                           \
            return -1;                                                                             \
        }                                                                                          \
        begin();                                                                                   \
        off_t start = position;                                                                    \
        ssize_t done = action == SHORT && size > 1 ? real short_arguments : real arguments;        \
        end(done > 0, "write", path, "-", start, done, data);                                      \
        return done;                                                                               \
    }

static off_t next_position(int fd)
{
    struct stat facts;
    if (fcntl(fd, F_GETFL) & O_APPEND)
        return fstat(fd, &facts) == 0 ? facts.st_size : 0;
    return lseek(fd, 0, SEEK_CUR);
}

WRITING(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), (fd, data, size / 2, at), size, at)
WRITING(pwrite64, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), (fd, data, size / 2, at), size, at)
WRITING(write, (int fd, const void *data, size_t size), (fd, data, size), (fd, data, size / 2), size, next_position(fd))

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
    REAL(ssize_t, pwritev, (int, const struct iovec *, int, off_t));
    size_t size = 0, filled = 0;
    ssize_t done;
    char *data;
    int i;

    if (!is_active())
        return real(fd, parts, count, at);
    for (i = 0; i < count; i++)
        size += parts[i].iov_len;
    data = malloc(size ? size : 1);
    for (i = 0; i < count; filled += parts[i++].iov_len)
        memcpy(data + filled, parts[i].iov_base, parts[i].iov_len);
    done = pwrite(fd, data, size, at);
    free(data);
    return done;
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) { return pwritev(fd, parts, count, at); }

#define ON_DESCRIPTOR(call, operation, name, parameters, arguments, size)  \
    int name parameters                                                    \
    {                                                                      \
        REAL(int, name, parameters);                                       \
        if (!is_active())                                                  \
            return real arguments;                                         \
        PATH_OF(fd, NULL);                                                 \
        if (is_failing(call, path))                                        \
            return -1;                                                     \
        begin();                                                           \
        int done = real arguments;                                         \
        end(done == 0 && operation != NULL, operation, path, "-", 0, size, NULL); \
        return done;                                                       \
    }

ON_DESCRIPTOR(SYNC, "sync", fsync, (int fd), (fd), 0)
ON_DESCRIPTOR(SYNC, "sync", fdatasync, (int fd), (fd), 0)
ON_DESCRIPTOR(TRUNCATE, "size", ftruncate, (int fd, off_t size), (fd, size), size)
ON_DESCRIPTOR(TRUNCATE, "size", ftruncate64, (int fd, off_t size), (fd, size), size)
ON_DESCRIPTOR(TRUNCATE, NULL, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), 0)
ON_DESCRIPTOR(TRUNCATE, NULL, fallocate64, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), 0)

ON_DESCRIPTOR(0, "drop", posix_fadvise, (int fd, off_t at, off_t size, int advice), (fd, at, size, advice), 0)
ON_DESCRIPTOR(0, "drop", posix_fadvise64, (int fd, off_t at, off_t size, int advice), (fd, at, size, advice), 0)

#define ON_PATH(call, operation, name, parameters, arguments, folder, file, other_folder, other, size) \
    int name parameters                                                                    \
    {                                                                                      \
        REAL(int, name, parameters);                                                       \
        if (!is_active())                                                                  \
            return real arguments;                                                         \
        PATH_OF(folder, file);                                                             \
        char second[4096] = "-";                                                           \
        if (other != NULL)                                                                 \
            path_at(other_folder, other, second, sizeof second);                           \
        if (is_failing(call, path))                                                        \
            return -1;                                                                     \
        begin();                                                                           \
        int done = real arguments;                                                         \
        end(done == 0, operation, path, second, 0, size, NULL);                            \
        return done;                                                                       \
    }

ON_PATH(RENAME, "rename", rename, (const char *from, const char *to), (from, to), AT_FDCWD, from, AT_FDCWD, to, 0)
ON_PATH(RENAME, "rename", renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), a, from, b, to, 0)
ON_PATH(UNLINK, "remove", unlink, (const char *name), (name), AT_FDCWD, name, AT_FDCWD, (const char *)NULL, 0)
ON_PATH(UNLINK, "remove", unlinkat, (int a, const char *name, int flags), (a, name, flags), a, name, AT_FDCWD, (const char *)NULL, 0)
ON_PATH(UNLINK, "remove", rmdir, (const char *name), (name), AT_FDCWD, name, AT_FDCWD, (const char *)NULL, 0)
ON_PATH(MKDIR, "folder", mkdir, (const char *name, mode_t mode), (name, mode), AT_FDCWD, name, AT_FDCWD, (const char *)NULL, 0)
ON_PATH(MKDIR, "folder", mkdirat, (int a, const char *name, mode_t mode), (a, name, mode), a, name, AT_FDCWD, (const char *)NULL, 0)
ON_PATH(TRUNCATE, "size", truncate, (const char *name, off_t size), (name, size), AT_FDCWD, name, AT_FDCWD, (const char *)NULL, size)
ON_PATH(TRUNCATE, "size", truncate64, (const char *name, off_t size), (name, size), AT_FDCWD, name, AT_FDCWD, (const char *)NULL, size)

static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; }

#define OPENING(name, parameters, arguments, folder)                                        \
    int name parameters                                                                     \
    {                                                                                       \
        REAL(int, name, parameters);                                                        \
        va_list rest;                                                                       \
        va_start(rest, flags);                                                              \
        mode_t mode = mode_of(flags, rest);                                                 \
        va_end(rest);                                                                       \
        if (!is_active())                                                                   \
            return real arguments;                                                          \
        PATH_OF(folder, file);                                                              \
        if (is_failing(OPEN, path))                                                         \
            return -1;                                                                      \
        begin();                                                                            \
        struct stat facts;                                                                  \
        int is_new = flags & O_CREAT && fstatat(folder, file, &facts, 0) != 0;              \
        int done = real arguments;                                                          \
        end(done >= 0 && (is_new || flags & O_TRUNC), is_new ? "create" : "size", path, "-", 0, 0, NULL); \
        return done;                                                                        \
    }

OPENING(open, (const char *file, int flags, ...), (file, flags, mode), AT_FDCWD)
OPENING(open64, (const char *file, int flags, ...), (file, flags, mode), AT_FDCWD)
OPENING(openat, (int at, const char *file, int flags, ...), (at, file, flags, mode), at)
OPENING(openat64, (int at, const char *file, int flags, ...), (at, file, flags, mode), at)
