"""Delayed operations of the native handlers' purgatories, by topic and partition, each with its connection."""
from libc.stdint cimport int64_t
from kbroker._core.timer.purgatory_core cimport Purgatory
from kbroker.requests._native_types cimport NativeApisCore

# ``watched``, ``delayed``, ``is_truncated`` and ``operations``, `limit` at most. Takes the shard locks, the timer's and
# the topics' in turn, each for microseconds.
cdef dict waiting_in(NativeApisCore *native_apis, Purgatory *purgatory, bint is_fetch, int64_t limit)
