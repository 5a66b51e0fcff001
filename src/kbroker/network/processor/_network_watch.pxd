"""Watch over network threads that execute requests: a request that takes long must not hold up other connections.

It checks them every 10 ms while they help, and sleeps when none has helped for a second. A network thread that has
helped for 20 ms is stuck: its loop is passed to a stand-in. If batches wait between two checks and none is taken, more
takers are woken. Locks: ``Watch.lock``, before the queue's.
"""
from kbroker.network.processor._processor_core cimport Watch

cdef class NetworkWatch:
    cdef Watch *watch           # owned
    cdef dict processors        # by the address of their core
