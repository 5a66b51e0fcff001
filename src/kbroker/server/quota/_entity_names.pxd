"""Names of users and client ids between Python's text and the entities' bytes."""
from kbroker.server.quota._entities cimport Text

cdef bytes encoded(object name, str what)       # None is the empty one; TypeError for what is no str
cdef Text text_of(bytes data) noexcept          # borrows
cdef str decoded(Text text)                     # what is no UTF-8 is replaced
cdef int part_of(object name) noexcept          # an EntityPart
