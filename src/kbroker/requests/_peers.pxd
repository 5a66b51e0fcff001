"""Native handlers of the nodes in one process (``--brokers``): an event of a partition concerns the fetches of each.

Lock: ``Peers.lock``, which is held while the list is read or changed, and not while a node is visited: a node leaves
when the last visit has ended.
"""
from kbroker._core.timer.purgatory cimport Key
from kbroker.requests._native_types cimport NativeApisCore

cdef bint peers_join(NativeApisCore *native_apis, NativeApisCore *peer) noexcept nogil      # false: out of memory
cdef void peers_leave(NativeApisCore *native_apis) noexcept nogil       # idempotent; the caller visits none
cdef void peers_release(NativeApisCore *native_apis) noexcept nogil     # after peers_leave, once
cdef void peers_check_fetches(NativeApisCore *native_apis, Key *key) noexcept nogil     # fetches on the other nodes
