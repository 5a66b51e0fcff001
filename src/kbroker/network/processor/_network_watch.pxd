"""Watch over network threads that execute requests: a request that takes long must not hold up other connections.

It looks at them every 10 ms while they help, and sleeps when none has helped for a second. A network thread that has
helped for 20 ms is stuck: its loop is passed to a stand-in. Lock: ``Watch.lock``, a leaf.
"""
from kbroker.network.processor._processor_core cimport Watch

cdef class NetworkWatch:
    cdef Watch *watch           # owned
    cdef dict processors        # by the address of their core
