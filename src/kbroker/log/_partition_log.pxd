"""Python's handle on a partition."""
from kbroker.log._partition cimport Partition

cdef class PartitionLog:        # holds one reference; opened and configured by log/manager.py
    cdef Partition *partition
    cdef readonly str directory
    cdef readonly str topic
    cdef readonly int partition_id
    cdef readonly bint in_memory
