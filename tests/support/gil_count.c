/* Counter of GIL acquisitions by compiled modules, for LD_PRELOAD. The file GIL_COUNT_FILE has the count as a uint64_t.
 *
 * A native thread that calls Python calls PyGILState_Ensure; a Python thread that has run code without the GIL calls
 * PyEval_RestoreThread. Calls inside the interpreter's own library are not counted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t unseen;
static uint64_t *count = &unseen;

__attribute__((constructor)) static void open_count(void) {
    const char *name = getenv("GIL_COUNT_FILE");
    int fd = name == NULL ? -1 : open(name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *count) != 0) return;
    void *memory = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED) count = memory;
}

int PyGILState_Ensure(void) {
    static int (*next)(void);
    if (next == NULL) next = (int (*)(void))dlsym(RTLD_NEXT, "PyGILState_Ensure");
    __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    return next();
}

void PyEval_RestoreThread(void *state) {
    static void (*next)(void *);
    if (next == NULL) next = (void (*)(void *))dlsym(RTLD_NEXT, "PyEval_RestoreThread");
    __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    next(state);
}
