"""Locks, conditions and atomic counts, for C structs used without the GIL: those of pthread on Linux, else C++17's.

A ``Mutex``, ``Cond`` or ``AtomicI64`` lives inside a C struct: allocate the struct zeroed, call ``*_init`` once,
never copy the struct by value. Rules (they keep the GIL and the native handlers' locks from waiting for each other):
drop the GIL before taking any of these locks, never take the GIL while holding one.
"""
from libc.stdint cimport int32_t, int64_t

cdef extern from *:
    """
    #ifndef KBROKER_SYNC_H
    #define KBROKER_SYNC_H
    #include <atomic>
    #include <cstdint>
    struct kb_atomic_i64 { std::atomic<int64_t> v; };
    /* std::mutex is a pthread_mutex_t on Linux, but loads libstdc++ to throw: 1 MiB of an idle broker. */
    #ifdef __linux__
    #include <cerrno>
    #include <ctime>
    #include <pthread.h>
    struct kb_mutex { pthread_mutex_t m; };
    struct kb_cond { pthread_cond_t c; };
    static inline void kb_mutex_init(kb_mutex *p) { pthread_mutex_init(&p->m, NULL); }
    static inline void kb_mutex_destroy(kb_mutex *p) { pthread_mutex_destroy(&p->m); }
    static inline void kb_mutex_lock(kb_mutex *p) { pthread_mutex_lock(&p->m); }
    static inline int kb_mutex_try_lock(kb_mutex *p) { return pthread_mutex_trylock(&p->m) == 0; }
    static inline void kb_mutex_unlock(kb_mutex *p) { pthread_mutex_unlock(&p->m); }
    static inline void kb_cond_init(kb_cond *p) {
        pthread_condattr_t monotonic;
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(&p->c, &monotonic);
        pthread_condattr_destroy(&monotonic);
    }
    static inline void kb_cond_destroy(kb_cond *p) { pthread_cond_destroy(&p->c); }
    static inline void kb_cond_signal(kb_cond *p) { pthread_cond_signal(&p->c); }
    static inline void kb_cond_broadcast(kb_cond *p) { pthread_cond_broadcast(&p->c); }
    static inline void kb_cond_wait(kb_cond *p, kb_mutex *m) { pthread_cond_wait(&p->c, &m->m); }
    static inline int kb_cond_wait_for(kb_cond *p, kb_mutex *m, int64_t timeout_ns) {
        timespec end;
        clock_gettime(CLOCK_MONOTONIC, &end);
        timeout_ns += end.tv_nsec;
        end.tv_sec += timeout_ns / 1000000000;
        end.tv_nsec = timeout_ns % 1000000000;
        return pthread_cond_timedwait(&p->c, &m->m, &end) != ETIMEDOUT;
    }
    #else
    #include <chrono>
    #include <condition_variable>
    #include <mutex>
    #include <new>
    struct kb_mutex { std::mutex m; };
    struct kb_cond { std::condition_variable c; };
    static inline void kb_mutex_init(kb_mutex *p) noexcept { new (p) kb_mutex(); }
    static inline void kb_mutex_destroy(kb_mutex *p) noexcept { p->~kb_mutex(); }
    static inline void kb_mutex_lock(kb_mutex *p) noexcept { p->m.lock(); }
    static inline int kb_mutex_try_lock(kb_mutex *p) noexcept { return p->m.try_lock(); }
    static inline void kb_mutex_unlock(kb_mutex *p) noexcept { p->m.unlock(); }
    static inline void kb_cond_init(kb_cond *p) noexcept { new (p) kb_cond(); }
    static inline void kb_cond_destroy(kb_cond *p) noexcept { p->~kb_cond(); }
    static inline void kb_cond_signal(kb_cond *p) noexcept { p->c.notify_one(); }
    static inline void kb_cond_broadcast(kb_cond *p) noexcept { p->c.notify_all(); }
    static inline void kb_cond_wait(kb_cond *p, kb_mutex *m) noexcept {
        std::unique_lock<std::mutex> lock(m->m, std::adopt_lock);
        p->c.wait(lock);
        lock.release();
    }
    static inline int kb_cond_wait_for(kb_cond *p, kb_mutex *m, int64_t timeout_ns) noexcept {
        std::unique_lock<std::mutex> lock(m->m, std::adopt_lock);
        std::cv_status s = p->c.wait_for(lock, std::chrono::nanoseconds(timeout_ns));
        lock.release();
        return s == std::cv_status::no_timeout;
    }
    #endif
    static inline void kb_pause() noexcept {
    #if (defined(__x86_64__) || defined(__i386__)) && !defined(_MSC_VER)
        __builtin_ia32_pause();
    #elif defined(__aarch64__) && !defined(_MSC_VER)
        __asm__ __volatile__("isb");
    #endif
    }
    static inline void kb_prefetch(const void *p) noexcept {
    #if defined(__GNUC__) || defined(__clang__)
        __builtin_prefetch(p);
    #else
        (void)p;
    #endif
    }
    static inline void kb_mutex_lock_spinning(kb_mutex *p) {
        for (int i = 0; i < 100; i++) {
            if (kb_mutex_try_lock(p)) return;
            kb_pause();
        }
        kb_mutex_lock(p);
    }
    static inline int kb_cond_wait_ns(kb_cond *p, kb_mutex *m, int64_t timeout_ns) {
        if (timeout_ns <= 0) return 0;
        if (timeout_ns > INT64_C(3600000000000)) timeout_ns = INT64_C(3600000000000);
        return kb_cond_wait_for(p, m, timeout_ns);
    }
    static inline int64_t kb_load(kb_atomic_i64 *a) noexcept { return a->v.load(std::memory_order_acquire); }
    static inline int64_t kb_load_relaxed(kb_atomic_i64 *a) noexcept { return a->v.load(std::memory_order_relaxed); }
    static inline void kb_store(kb_atomic_i64 *a, int64_t x) noexcept { a->v.store(x, std::memory_order_release); }
    static inline void kb_store_seq(kb_atomic_i64 *a, int64_t x) noexcept { a->v.store(x, std::memory_order_seq_cst); }
    static inline int64_t kb_load_seq(kb_atomic_i64 *a) noexcept { return a->v.load(std::memory_order_seq_cst); }
    static inline int64_t kb_add(kb_atomic_i64 *a, int64_t x) noexcept {
        return a->v.fetch_add(x, std::memory_order_acq_rel) + x;
    }
    static inline int64_t kb_swap(kb_atomic_i64 *a, int64_t x) noexcept {
        return a->v.exchange(x, std::memory_order_seq_cst);
    }
    static inline int kb_cas(kb_atomic_i64 *a, int64_t want, int64_t x) noexcept {
        return a->v.compare_exchange_strong(want, x, std::memory_order_acq_rel, std::memory_order_acquire);
    }
    #endif
    """
    ctypedef struct Mutex "kb_mutex":
        pass
    ctypedef struct Cond "kb_cond":
        pass
    ctypedef struct AtomicI64 "kb_atomic_i64":
        pass
    void mutex_init "kb_mutex_init"(Mutex *m) noexcept nogil
    void mutex_destroy "kb_mutex_destroy"(Mutex *m) noexcept nogil
    void mutex_lock "kb_mutex_lock"(Mutex *m) noexcept nogil
    bint mutex_try_lock "kb_mutex_try_lock"(Mutex *m) noexcept nogil
    # Lock a mutex that several threads hold for tens of nanoseconds each: retry for about a microsecond before a sleep,
    # which costs ten times as much.
    void mutex_lock_spinning "kb_mutex_lock_spinning"(Mutex *m) noexcept nogil
    void prefetch "kb_prefetch"(const void *p) noexcept nogil       # a hint; any address will do
    void mutex_unlock "kb_mutex_unlock"(Mutex *m) noexcept nogil
    void cond_init "kb_cond_init"(Cond *c) noexcept nogil
    void cond_destroy "kb_cond_destroy"(Cond *c) noexcept nogil
    void cond_signal "kb_cond_signal"(Cond *c) noexcept nogil
    void cond_broadcast "kb_cond_broadcast"(Cond *c) noexcept nogil
    void cond_wait "kb_cond_wait"(Cond *c, Mutex *m) noexcept nogil
    # Wait at most timeout_ns (real time, capped at one hour); false on time-out. Spurious wake-ups happen: loop.
    bint cond_wait_ns "kb_cond_wait_ns"(Cond *c, Mutex *m, int64_t timeout_ns) noexcept nogil
    int64_t atomic_load "kb_load"(AtomicI64 *a) noexcept nogil            # acquire
    int64_t atomic_load_relaxed "kb_load_relaxed"(AtomicI64 *a) noexcept nogil
    void atomic_store "kb_store"(AtomicI64 *a, int64_t x) noexcept nogil  # release
    int64_t atomic_load_seq "kb_load_seq"(AtomicI64 *a) noexcept nogil
    void atomic_store_seq "kb_store_seq"(AtomicI64 *a, int64_t x) noexcept nogil
    int64_t atomic_add_fetch "kb_add"(AtomicI64 *a, int64_t x) noexcept nogil   # returns the NEW value
    int64_t atomic_swap "kb_swap"(AtomicI64 *a, int64_t x) noexcept nogil  # returns the old value
    bint atomic_cas "kb_cas"(AtomicI64 *a, int64_t want, int64_t x) noexcept nogil
