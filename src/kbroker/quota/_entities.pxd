"""The quotas of one type by entity, the eight levels of precedence, and the names of entities.

Threads: no lock; a table belongs to its manager and is guarded by ``QuotaManager.lock``.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from kbroker._core.containers.hash_table cimport HashTable
from kbroker.common._text cimport Text

cdef enum:
    LEVELS = 8                  # of precedence, 1 the most specific: see entity_level

cdef enum EnabledBits:          # kinds of entity that have a quota of the type
    BIT_CLIENT_ID = 1
    BIT_USER = 2
    BIT_USER_CLIENT_ID = 4

cdef enum EntityPart:
    PART_NONE = 0
    PART_DEFAULT = 1
    PART_EXACT = 2

cdef struct EntityTable:
    HashTable entities
    int64_t at_level[LEVELS + 1]
    uint64_t seed

cdef struct Match:              # quota that applies to a user and a client id
    double limit
    int32_t level               # 1 to 8; 0: no quota matches
    Text user                   # the counter's tags: empty, or the given names
    Text client_id

# Return the level, 1 to 8; 0 for the entity without any part.
cdef int32_t entity_level(int user_part, int client_part) noexcept nogil
cdef bint names_client_id(int32_t level) noexcept nogil     # the entities of the level name a client id
# Set or remove the quota of an entity; names of parts that are not exact are empty. False: out of memory.
cdef bint entities_set(EntityTable *table, int32_t level, Text user, Text client_id, double limit) noexcept nogil
cdef void entities_remove(EntityTable *table, int32_t level, Text user, Text client_id) noexcept nogil
cdef void entities_clear(EntityTable *table) noexcept nogil
cdef int64_t entities_bits(const EntityTable *table) noexcept nogil
cdef void entities_match(const EntityTable *table, Text user, Text client_id, Match *match) noexcept nogil
# Return the limit of a counter by its tags, and its level.
cdef double entities_limit(const EntityTable *table, Text user, Text client_id, int32_t *level) noexcept nogil

cdef bytes encoded(object name, str what)       # None means the empty one; TypeError unless a str
cdef Text text_of(bytes data) noexcept          # borrowed from data
cdef str decoded(Text text)                     # invalid UTF-8 is replaced
cdef int part_of(object name) noexcept          # returns an EntityPart
