"""The one way into a partition's log. See _partition.pxd for the locks and the result."""
from libc.stdint cimport int16_t, int64_t
from kbroker.log._partition cimport AppendResult, Partition

# ``batch`` is the record data of one partition of a Produce request: patched in place (offset, epoch, maybe timestamp
# and CRC). ``api_version`` decides zstd (7+) and the one-batch rule; is_client = 0 skips client-only checks (internal
# writers).
cdef void partition_append(Partition *partition, char *batch, int64_t size_bytes, int16_t acks, int16_t api_version,
                           bint is_client, AppendResult *out) noexcept nogil
# One batch that the broker has just built and summed itself, without a producer: it is stored as it is, unless the
# topic wants another codec or time stamp.
cdef void partition_append_built(Partition *partition, char *batch, int64_t size_bytes,
                                 AppendResult *out) noexcept nogil
