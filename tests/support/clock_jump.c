/* Wall clock that a test sets ahead or back while the process runs. Linux only.
 *
 * LD_PRELOAD=clock_jump.so CLOCK_JUMP=FILE: FILE has the difference to the real clock in seconds (int64), which the test
 * maps too. The monotonic clock is unchanged, as after `date -s` or a step of NTP.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead_s;

__attribute__((constructor)) static void map_difference(void)
{
    const char *path = getenv("CLOCK_JUMP");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, fd, 0);

    if (fd >= 0)
        close(fd);
    if (mapped != MAP_FAILED)
        ahead_s = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);

    if (result == 0 && ahead_s != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead_s;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into)
{
    struct timespec exact;

    clock_gettime(CLOCK_REALTIME, &exact);
    if (into != NULL)
        *into = exact.tv_sec;
    return exact.tv_sec;
}
