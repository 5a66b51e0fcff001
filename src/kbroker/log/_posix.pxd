"""System calls of the log: whole reads and writes, sync, mappings, memory files.

Each returns a count or -errno and retries EINTR.
"""
from libc.stdint cimport int32_t, int64_t

cdef extern from "kbroker/log/posix.h" nogil:
    int io_open "kb_open"(const char *path, bint create) noexcept
    int io_close "kb_close"(int fd) noexcept
    # The result is below size_bytes only at the end of the file.
    int64_t io_read "kb_pread"(int fd, char *data, int64_t size_bytes, int64_t position) noexcept
    int64_t io_write "kb_pwrite"(int fd, const char *data, int64_t size_bytes, int64_t position) noexcept
    struct iovec:
        void *iov_base
        size_t iov_len
    int64_t io_write_parts "kb_pwritev"(int fd, iovec *parts, int count, int64_t position) noexcept    # alters parts
    int io_truncate "kb_truncate"(int fd, int64_t size_bytes) noexcept
    int io_reserve "kb_reserve"(int fd, int64_t size_bytes) noexcept
    int64_t io_fd_size "kb_fd_size"(int fd) noexcept
    int64_t io_path_size "kb_path_size"(const char *path) noexcept
    int64_t io_modified_ms "kb_modified_ms"(const char *path) noexcept
    int io_sync "kb_sync"(int fd) noexcept
    int io_sync_directory "kb_sync_directory"(const char *path) noexcept
    int io_memory_file "kb_memory_file"() noexcept
    int64_t io_descriptor_limit "kb_descriptor_limit"() noexcept
    char *io_map "kb_map"(int fd, int64_t size_bytes, bint writable) noexcept
    void io_unmap "kb_unmap"(char *data, int64_t size_bytes) noexcept
    int io_rename "kb_rename"(const char *source, const char *target) noexcept
    int io_unlink "kb_unlink"(const char *path) noexcept
    int64_t io_read_file "kb_read_file"(const char *path, char *out, int64_t capacity_bytes) noexcept
    int64_t io_names "kb_names"(const char *path, char *out, int64_t capacity_bytes) noexcept
    int io_write_file "kb_write_file"(const char *path, const char *data, int64_t size_bytes,
                                      bint is_synced) noexcept
    void io_drop_cache "kb_drop_cache"(int fd) noexcept
    void io_yield "kb_yield"() noexcept
    void log_path "kb_log_path"(char *out, int64_t capacity_bytes, const char *directory, int64_t base_offset,
                                const char *suffix) noexcept
    int EIO
    int ENOENT
    int ENOMEM
    int ENOSPC
    int EINVAL
    int EMFILE
    int ENFILE

cdef enum:
    PATH_BYTES = 4352            # a directory of PATH_MAX and a file name
