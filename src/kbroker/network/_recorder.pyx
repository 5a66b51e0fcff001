# cython: freethreading_compatible=True
"""The handle that a Processor is given; see the .pxd for what it does."""


cdef class RequestRecorder:
    """Records the finished requests of one network thread; this one, nothing. No two processors have the same."""
