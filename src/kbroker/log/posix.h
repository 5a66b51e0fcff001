/* System calls of the log: whole reads and writes, sync, mappings, memory files. Each returns a count or -errno;
   EINTR is retried. Declared to Cython by _posix.pxd. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#ifdef _WIN32   /* compiled by `make cross`, not run yet; descriptors are those of the C library */
#ifndef NOMINMAX
#define NOMINMAX
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <fcntl.h>
#include <io.h>
#include <share.h>
#include <sys/stat.h>
#include <windows.h>
static inline int kb_win_error(void) {
    switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND: case ERROR_PATH_NOT_FOUND: return -ENOENT;
    case ERROR_ACCESS_DENIED: case ERROR_SHARING_VIOLATION: case ERROR_LOCK_VIOLATION: return -EACCES;
    case ERROR_DISK_FULL: case ERROR_HANDLE_DISK_FULL: return -ENOSPC;
    case ERROR_TOO_MANY_OPEN_FILES: return -EMFILE;
    case ERROR_NOT_ENOUGH_MEMORY: return -ENOMEM;
    default: return -EIO;
    }
}
static inline HANDLE kb_handle(int fd) { return (HANDLE)_get_osfhandle(fd); }
static inline int kb_wide(const char *path, wchar_t *out) {   /* paths are UTF-8 */
    return MultiByteToWideChar(CP_UTF8, 0, path, -1, out, 4400) > 0;
}
/* Shared for everything, so that a file can be renamed or unlinked while it is open, as on POSIX. */
static inline int kb_win_open(const char *path, DWORD disposition, DWORD flags) {
    wchar_t wide[4400];
    if (!kb_wide(path, wide)) return -ENAMETOOLONG;
    HANDLE h = CreateFileW(wide, GENERIC_READ | GENERIC_WRITE | DELETE,
                           FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, disposition, flags, NULL);
    if (h == INVALID_HANDLE_VALUE) return kb_win_error();
    int fd = _open_osfhandle((intptr_t)h, _O_RDWR | _O_BINARY | _O_NOINHERIT);
    if (fd < 0) { CloseHandle(h); return -EMFILE; }
    return fd;
}
static inline int kb_open(const char *path, int create) {
    return kb_win_open(path, create ? OPEN_ALWAYS : OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL);
}
static inline int kb_close(int fd) { return _close(fd) ? -errno : 0; }
static inline DWORD kb_chunk(int64_t left) { return (DWORD)(left > (1 << 30) ? 1 << 30 : left); }
static inline int64_t kb_pread(int fd, char *data, int64_t size, int64_t position) {
    int64_t done = 0;
    while (done < size) {
        OVERLAPPED at = {};
        DWORD n = 0;
        at.Offset = (DWORD)(position + done);
        at.OffsetHigh = (DWORD)((uint64_t)(position + done) >> 32);
        if (!ReadFile(kb_handle(fd), data + done, kb_chunk(size - done), &n, &at))
            return GetLastError() == ERROR_HANDLE_EOF ? done : kb_win_error();
        if (n == 0) break;
        done += n;
    }
    return done;
}
static inline int64_t kb_pwrite(int fd, const char *data, int64_t size, int64_t position) {
    int64_t done = 0;
    while (done < size) {
        OVERLAPPED at = {};
        DWORD n = 0;
        at.Offset = (DWORD)(position + done);
        at.OffsetHigh = (DWORD)((uint64_t)(position + done) >> 32);
        if (!WriteFile(kb_handle(fd), data + done, kb_chunk(size - done), &n, &at)) return kb_win_error();
        if (n == 0) return -ENOSPC;
        done += n;
    }
    return done;
}
struct iovec { void *iov_base; size_t iov_len; };
static inline int64_t kb_pwritev(int fd, struct iovec *parts, int count, int64_t position) {
    int64_t done = 0;
    for (int i = 0; i < count; i++) {
        int64_t n = kb_pwrite(fd, (const char *)parts[i].iov_base, (int64_t)parts[i].iov_len, position + done);
        if (n < 0) return n;
        done += n;
    }
    return done;
}
static inline int kb_truncate(int fd, int64_t size) {
    FILE_END_OF_FILE_INFO end;
    end.EndOfFile.QuadPart = size;
    return SetFileInformationByHandle(kb_handle(fd), FileEndOfFileInfo, &end, sizeof end) ? 0 : kb_win_error();
}
static inline int kb_reserve(int fd, int64_t size) {
    FILE_ALLOCATION_INFO space;
    space.AllocationSize.QuadPart = size;
    if (SetFileInformationByHandle(kb_handle(fd), FileAllocationInfo, &space, sizeof space)) return 0;
    int rc = kb_win_error();
    return rc == -ENOSPC ? rc : 0;
}
static inline int64_t kb_fd_size(int fd) {
    LARGE_INTEGER size;
    return GetFileSizeEx(kb_handle(fd), &size) ? (int64_t)size.QuadPart : kb_win_error();
}
static inline int kb_win_facts(const char *path, WIN32_FILE_ATTRIBUTE_DATA *facts) {
    wchar_t wide[4400];
    if (!kb_wide(path, wide)) return -ENAMETOOLONG;
    return GetFileAttributesExW(wide, GetFileExInfoStandard, facts) ? 0 : kb_win_error();
}
static inline int64_t kb_path_size(const char *path) {
    WIN32_FILE_ATTRIBUTE_DATA f;
    int rc = kb_win_facts(path, &f);
    return rc ? rc : (int64_t)((uint64_t)f.nFileSizeHigh << 32 | f.nFileSizeLow);
}
static inline int64_t kb_modified_ms(const char *path) {
    WIN32_FILE_ATTRIBUTE_DATA f;
    int rc = kb_win_facts(path, &f);
    if (rc) return rc;
    uint64_t since_1601 = (uint64_t)f.ftLastWriteTime.dwHighDateTime << 32 | f.ftLastWriteTime.dwLowDateTime;
    return (int64_t)(since_1601 / 10000) - INT64_C(11644473600000);
}
static inline int kb_sync(int fd) { return FlushFileBuffers(kb_handle(fd)) ? 0 : kb_win_error(); }
static inline int kb_sync_directory(const char *path) { (void)path; return 0; }    /* NTFS journals its folders */
static inline void kb_drop_cache(int fd) { (void)fd; }
static inline void kb_yield(void) { SwitchToThread(); }
static inline int kb_memory_file(void) {
    wchar_t folder[MAX_PATH + 1], name[MAX_PATH + 1];
    char path[4 * MAX_PATH];
    if (!GetTempPathW(MAX_PATH, folder) || !GetTempFileNameW(folder, L"kbl", 0, name)) return kb_win_error();
    if (!WideCharToMultiByte(CP_UTF8, 0, name, -1, path, sizeof path, NULL, NULL)) return -ENAMETOOLONG;
    return kb_win_open(path, CREATE_ALWAYS, FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE);
}
static inline int64_t kb_descriptor_limit(void) { return 8192; }     /* the C library's maximum */
static inline char *kb_map(int fd, int64_t size, int writable) {     /* fd -1: anonymous memory */
    if (fd < 0) return (char *)VirtualAlloc(NULL, (SIZE_T)size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    HANDLE m = CreateFileMappingW(kb_handle(fd), NULL, writable ? PAGE_READWRITE : PAGE_READONLY,
                                  (DWORD)((uint64_t)size >> 32), (DWORD)size, NULL);
    if (m == NULL) return NULL;
    void *p = MapViewOfFile(m, writable ? FILE_MAP_WRITE : FILE_MAP_READ, 0, 0, (SIZE_T)size);
    CloseHandle(m);
    return (char *)p;
}
static inline void kb_unmap(char *p, int64_t size) {
    (void)size;
    if (!UnmapViewOfFile(p)) VirtualFree(p, 0, MEM_RELEASE);
}
static inline int kb_rename(const char *from, const char *to) {
    wchar_t a[4400], b[4400];
    if (!kb_wide(from, a) || !kb_wide(to, b)) return -ENAMETOOLONG;
    return MoveFileExW(a, b, MOVEFILE_REPLACE_EXISTING) ? 0 : kb_win_error();
}
static inline int kb_unlink(const char *path) {
    wchar_t wide[4400];
    if (!kb_wide(path, wide)) return -ENAMETOOLONG;
    return DeleteFileW(wide) ? 0 : kb_win_error();
}
static inline int kb_create(const char *path) { return kb_win_open(path, CREATE_ALWAYS, FILE_ATTRIBUTE_NORMAL); }
static inline int kb_open_to_read(const char *path) { return kb_open(path, 0); }
static inline int64_t kb_names(const char *path, char *out, int64_t capacity) {
    (void)path; (void)out; (void)capacity;
    return -ENOSYS;
}
#else
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
static inline int kb_open_with(const char *path, int flags) {
    for (;;) {
        int fd = open(path, flags | O_CLOEXEC, 0644);
        if (fd >= 0) return fd;
        if (errno != EINTR) return -errno;
    }
}
static inline int kb_open(const char *path, int create) { return kb_open_with(path, O_RDWR | (create ? O_CREAT : 0)); }
static inline int kb_close(int fd) { return close(fd) ? -errno : 0; }
static inline int64_t kb_pread(int fd, char *data, int64_t size, int64_t position) {
    int64_t done = 0;
    while (done < size) {
        ssize_t n = pread(fd, data + done, (size_t)(size - done), (off_t)(position + done));
        if (n < 0) { if (errno == EINTR) continue; return -errno; }
        if (n == 0) break;
        done += n;
    }
    return done;
}
static inline int64_t kb_pwrite(int fd, const char *data, int64_t size, int64_t position) {
    int64_t done = 0;
    while (done < size) {
        ssize_t n = pwrite(fd, data + done, (size_t)(size - done), (off_t)(position + done));
        if (n < 0) { if (errno == EINTR) continue; return -errno; }
        if (n == 0) return -ENOSPC;
        done += n;
    }
    return done;
}
static inline int64_t kb_pwritev(int fd, struct iovec *parts, int count, int64_t position) {  /* alters the parts */
    int64_t done = 0;
    while (count > 0) {
        ssize_t n = pwritev(fd, parts, count, (off_t)(position + done));
        if (n < 0) { if (errno == EINTR) continue; return -errno; }
        if (n == 0) return -ENOSPC;
        done += n;
        for (; count > 0 && (size_t)n >= parts->iov_len; parts++, count--) n -= (ssize_t)parts->iov_len;
        if (count > 0) {
            parts->iov_base = (char *)parts->iov_base + n;
            parts->iov_len -= (size_t)n;
        }
    }
    return done;
}
static inline int kb_truncate(int fd, int64_t size) {
    for (;;) {
        if (ftruncate(fd, (off_t)size) == 0) return 0;
        if (errno != EINTR) return -errno;
    }
}
/* Reserve disk space for a file that will grow to size; its size is unchanged. 0 even where that is not supported. */
static inline int kb_reserve(int fd, int64_t size) {
#if defined(__linux__) && defined(FALLOC_FL_KEEP_SIZE)
    for (;;) {
        if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size) == 0) return 0;
        if (errno == EINTR) continue;
        return errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL ? 0 : -errno;
    }
#elif defined(F_PREALLOCATE)
    fstore_t space = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, (off_t)size, 0};
    if (fcntl(fd, F_PREALLOCATE, &space) == 0 || errno != ENOSPC) return 0;
    return -errno;
#else
    (void)fd; (void)size;
    return 0;
#endif
}
static inline int64_t kb_fd_size(int fd) { struct stat s; return fstat(fd, &s) ? -errno : (int64_t)s.st_size; }
static inline int64_t kb_path_size(const char *path) {
    struct stat s;
    return stat(path, &s) ? -errno : (int64_t)s.st_size;
}
static inline int64_t kb_modified_ms(const char *path) {
    struct stat s;
    if (stat(path, &s)) return -errno;
#ifdef __APPLE__
    return (int64_t)s.st_mtimespec.tv_sec * 1000 + s.st_mtimespec.tv_nsec / 1000000;
#else
    return (int64_t)s.st_mtim.tv_sec * 1000 + s.st_mtim.tv_nsec / 1000000;
#endif
}
static inline int kb_sync(int fd) {   /* macOS: fsync alone leaves data in the drive's cache */
    for (;;) {
#ifdef __APPLE__
        if (fcntl(fd, F_FULLFSYNC) == 0 || fsync(fd) == 0) return 0;
#else
        if (fdatasync(fd) == 0) return 0;
#endif
        if (errno != EINTR) return -errno;
    }
}
static inline int kb_sync_directory(const char *path) {
    int rc, fd = kb_open_with(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return fd;
    do rc = fsync(fd) ? -errno : 0; while (rc == -EINTR);
    if (rc == -EINVAL) rc = 0;        /* a file system that cannot sync a folder */
    close(fd);
    return rc;
}
/* Let the next read come from the disk: pages that a failed sync has lost may still be in the cache, marked as clean. */
static inline void kb_drop_cache(int fd) {
#ifdef POSIX_FADV_DONTNEED
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
#else
    (void)fd;
#endif
}
static inline void kb_yield(void) { sched_yield(); }
static inline int kb_memory_file(void) {
#if defined(__linux__) && defined(MFD_CLOEXEC)
    int fd = memfd_create("kbroker-log", MFD_CLOEXEC);
    if (fd >= 0) return fd;
#endif
    const char *base = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/kbroker-log-XXXXXX", base && *base ? base : "/tmp");
    int tmp = mkstemp(path);
    if (tmp < 0) return -errno;
    unlink(path);
    fcntl(tmp, F_SETFD, FD_CLOEXEC);
    return tmp;
}
static inline int64_t kb_descriptor_limit(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY || r.rlim_cur > 1048576) return 1048576;
    return (int64_t)r.rlim_cur;
}
static inline char *kb_map(int fd, int64_t size, int writable) {     /* fd -1: anonymous memory */
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
#ifdef MAP_NORESERVE
    if (fd < 0) flags |= MAP_NORESERVE;
#endif
    void *p = mmap(NULL, (size_t)size, writable ? PROT_READ | PROT_WRITE : PROT_READ, flags, fd, 0);
    return p == MAP_FAILED ? NULL : (char *)p;
}
static inline void kb_unmap(char *p, int64_t size) { munmap(p, (size_t)size); }
static inline int kb_rename(const char *from, const char *to) { return rename(from, to) ? -errno : 0; }
static inline int kb_unlink(const char *path) { return unlink(path) ? -errno : 0; }
static inline int kb_create(const char *path) { return kb_open_with(path, O_WRONLY | O_CREAT | O_TRUNC); }
static inline int kb_open_to_read(const char *path) { return kb_open_with(path, O_RDONLY); }
/* Names in a folder without . and .., each ended by a zero byte: their bytes, -ERANGE if there are more than capacity. */
static inline int64_t kb_names(const char *path, char *out, int64_t capacity) {
    DIR *folder = opendir(path);
    if (!folder) return -errno;
    int64_t size = 0;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(folder)); ) {
        const char *name = entry->d_name;
        if (name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]))) continue;
        int64_t bytes = (int64_t)strlen(name) + 1;
        if (size + bytes > capacity) { errno = ERANGE; break; }
        memcpy(out + size, name, (size_t)bytes);
        size += bytes;
    }
    int error = errno;
    closedir(folder);
    return error ? -error : size;
}
#endif
/* The first bytes of a file, or -errno. */
static inline int64_t kb_read_file(const char *path, char *out, int64_t capacity) {
    int fd = kb_open_to_read(path);
    if (fd < 0) return fd;
    int64_t size = kb_pread(fd, out, capacity, 0);
    kb_close(fd);
    return size;
}
/* Write path.tmp, then rename it to path; is_synced: its content is on the disk before that. */
static inline int kb_write_file(const char *path, const char *data, int64_t size, int is_synced) {
    char tmp[4400];
    if (snprintf(tmp, sizeof tmp, "%s.tmp", path) >= (int)sizeof tmp) return -ENAMETOOLONG;
    int fd = kb_create(tmp);
    if (fd < 0) return fd;
    int64_t rc = kb_pwrite(fd, data, size, 0);
    if (rc >= 0 && is_synced) rc = kb_sync(fd);
    kb_close(fd);
    if (rc >= 0) rc = kb_rename(tmp, path);
    if (rc < 0) kb_unlink(tmp);
    return (int)rc;
}
static inline void kb_log_path(char *out, int64_t capacity, const char *directory, int64_t base, const char *suffix) {
    snprintf(out, (size_t)capacity, "%s/%020lld%s", directory, (long long)base, suffix);
}
