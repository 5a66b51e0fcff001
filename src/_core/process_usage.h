/* Resources that this process and the calling thread have used so far, by the system's count; 0 if it has no count.
 *
 * CPU time is an amount that was used, not a time of day: nothing may wait or expire by it. */
#ifndef KBROKER_PROCESS_USAGE_H
#define KBROKER_PROCESS_USAGE_H
#include <stdint.h>
#include <stdio.h>

#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#include <psapi.h>
static inline int64_t kb_filetimes_ns(FILETIME kernel, FILETIME user) {    /* of 100 ns */
    return 100 * (((int64_t)kernel.dwHighDateTime << 32 | kernel.dwLowDateTime)
                  + ((int64_t)user.dwHighDateTime << 32 | user.dwLowDateTime));
}
static inline int64_t kb_process_cpu_ns(void) {
    FILETIME made, ended, kernel, user;
    return GetProcessTimes(GetCurrentProcess(), &made, &ended, &kernel, &user) ? kb_filetimes_ns(kernel, user) : 0;
}
static inline int64_t kb_thread_cpu_ns(void) {
    FILETIME made, ended, kernel, user;
    return GetThreadTimes(GetCurrentThread(), &made, &ended, &kernel, &user) ? kb_filetimes_ns(kernel, user) : 0;
}
static inline int64_t kb_thread_waits(void) { return 0; }
static inline int64_t kb_resident_bytes(void) {
    PROCESS_MEMORY_COUNTERS found;
    return K32GetProcessMemoryInfo(GetCurrentProcess(), &found, sizeof found) ? (int64_t)found.WorkingSetSize : 0;
}

#else
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach/mach.h>
#endif
static inline int64_t kb_usage_cpu_ns(const struct rusage *used) {
    return ((int64_t)used->ru_utime.tv_sec + used->ru_stime.tv_sec) * 1000000000
        + ((int64_t)used->ru_utime.tv_usec + used->ru_stime.tv_usec) * 1000;
}
static inline int64_t kb_process_cpu_ns(void) {
    struct rusage used;
    return getrusage(RUSAGE_SELF, &used) == 0 ? kb_usage_cpu_ns(&used) : 0;
}
static inline int64_t kb_thread_cpu_ns(void) {
#if defined(RUSAGE_THREAD)
    struct rusage used;
    return getrusage(RUSAGE_THREAD, &used) == 0 ? kb_usage_cpu_ns(&used) : 0;
#else
    return 0;
#endif
}
static inline int64_t kb_thread_waits(void) {          /* voluntary context switches */
#if defined(RUSAGE_THREAD)
    struct rusage used;
    return getrusage(RUSAGE_THREAD, &used) == 0 ? (int64_t)used.ru_nvcsw : 0;
#else
    return 0;
#endif
}
static inline int64_t kb_resident_bytes(void) {
#if defined(__APPLE__)
    mach_task_basic_info_data_t found;
    mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
    return task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&found, &count) == KERN_SUCCESS
        ? (int64_t)found.resident_size : 0;
#else
    char text[128];
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL) return 0;
    if (fgets(text, sizeof text, file) == NULL || sscanf(text, "%*d %ld", &pages) != 1) pages = 0;
    fclose(file);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
#endif
}
#endif
#endif
