/* System calls that fail on demand, for tests: LD_PRELOAD=failing_calls.so FAILING_CALLS=FILE.
 *
 * While FILE exists it has one line: a part of a path, an error number, and the names of calls with commas between:
 * pwrite, ftruncate, fsync, with their variants.
 * These calls fail with that error on files whose path contains the part. Linux only.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static ssize_t (*real_read)(int, void *, size_t);

__attribute__((constructor)) static void find_read(void)
{
    real_read = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
}

/* Return the error with which a call on a descriptor fails, 0 for none. */
static int error_of(int fd, const char *call)
{
    char line[512], part[256], calls[128], link[64], path[4096], *name, *rest = calls;
    int number = 0, control, saved = errno, found = 0;
    const char *control_path = getenv("FAILING_CALLS");
    ssize_t size;

    if (control_path == NULL || (control = open(control_path, O_RDONLY | O_CLOEXEC)) < 0) {
        errno = saved;
        return 0;
    }
    size = real_read(control, line, sizeof line - 1);
    close(control);
    line[size > 0 ? size : 0] = 0;
    if (sscanf(line, "%255s %d %127s", part, &number, calls) == 3) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        size = readlink(link, path, sizeof path - 1);
        path[size > 0 ? size : 0] = 0;
        while (strstr(path, part) != NULL && (name = strsep(&rest, ",")) != NULL)
            found = found || strcmp(name, call) == 0;
    }
    errno = saved;
    return found ? number : 0;
}

#define FAILING(name, type, call, parameters, arguments)                 \
    type call parameters                                                 \
    {                                                                    \
        static type(*real) parameters;                                   \
        int number = error_of(fd, name);                                 \
        if (number != 0) {                                               \
            errno = number;                                              \
            return -1;                                                   \
        }                                                                \
        if (real == NULL)                                                \
            real = (type(*) parameters)dlsym(RTLD_NEXT, #call);          \
        return real arguments;                                           \
    }

FAILING("pwrite", ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
FAILING("pwrite", ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
FAILING("ftruncate", int, ftruncate, (int fd, off_t size), (fd, size))
FAILING("ftruncate", int, ftruncate64, (int fd, off64_t size), (fd, size))
FAILING("fsync", int, fsync, (int fd), (fd))
FAILING("fsync", int, fdatasync, (int fd), (fd))
