/* Settings that a thread of kbroker requests from the system before its work begins. Each call is about the calling
 * thread, and has no effect where the system lacks the setting. */
#ifndef KBROKER_THREAD_SETUP_H
#define KBROKER_THREAD_SETUP_H

#ifndef _WIN32
#include <signal.h>
static inline void kb_block_signals(void) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
}
#else
static inline void kb_block_signals(void) {}
#endif

/* Name the thread in ps, top and debuggers: the first 15 bytes on Linux. */
#if defined(__linux__)
#include <sys/prctl.h>
static inline void kb_name_thread(const char *name) { prctl(PR_SET_NAME, name, 0, 0, 0); }
#elif defined(__APPLE__)
#include <pthread.h>
static inline void kb_name_thread(const char *name) { pthread_setname_np(name); }
#else
static inline void kb_name_thread(const char *name) { (void)name; }
#endif

/* Run soon after waking rather than for long: time slices of 0.1 ms, the shortest that Linux gives (6.12 and later
 * accept the request of an ordinary thread; older ones ignore it). For threads whose work has due times. The thread's
 * share of the processor stays the same. */
#ifdef __linux__
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
struct kb_sched_attr {          /* the kernel's struct sched_attr; the headers of some C libraries lack it */
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice_ns, deadline_ns, period_ns;
};
static inline void kb_short_slice(void) {
#ifdef SYS_sched_setattr
    struct kb_sched_attr own;
    memset(&own, 0, sizeof own);
    if (syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) == 0 && own.policy == 0) {
        own.size = sizeof own;
        own.slice_ns = 100000;
        (void)!syscall(SYS_sched_setattr, 0, &own, 0);
    }
#endif
}
#else
static inline void kb_short_slice(void) {}
#endif
#endif
