"""Limits by entity, in a hash table of C structs; the precedence of KIP-55 and the resulting tags.

The names of entities, as Python strings and in metric tags. Source: ``ClientQuotaManager.DefaultQuotaCallback``.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kbroker._core.containers.hash_table cimport (
    HashNode, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport hash_seeded, mix_hash
from kbroker.common._quota_counter cimport NO_LIMIT
from kbroker.common._text cimport same_text


cdef struct Entity:
    HashNode node               # first
    double limit
    int32_t level
    Text user                   # after the struct
    Text client_id


cdef int32_t entity_level(int user_part, int client_part) noexcept nogil:
    if user_part == PART_NONE:
        return 0 if client_part == PART_NONE else (7 if client_part == PART_EXACT else 8)
    return (1 if user_part == PART_EXACT else 4) + (2 - client_part)


cdef bint names_client_id(int32_t level) noexcept nogil:
    return level == 1 or level == 4 or level == 7


cdef uint64_t hash_of(uint64_t seed, int32_t level, Text user, Text client_id) noexcept nogil:
    cdef uint64_t h = hash_seeded(user.data, user.size_bytes, seed) + <uint64_t>level
    return mix_hash(h ^ hash_seeded(client_id.data, client_id.size_bytes, ~seed))


cdef Entity *find(const EntityTable *table, int32_t level, Text user, Text client_id) noexcept nogil:
    cdef HashNode *node
    cdef Entity *entity
    if table.at_level[level] == 0:
        return NULL
    node = hash_first(&table.entities, hash_of(table.seed, level, user, client_id))
    while node != NULL:
        entity = <Entity *>node
        if entity.level == level and same_text(entity.user, user) and same_text(entity.client_id, client_id):
            return entity
        node = hash_next(node)
    return NULL


cdef bint entities_set(EntityTable *table, int32_t level, Text user, Text client_id, double limit) noexcept nogil:
    cdef Entity *entity = find(table, level, user, client_id)
    cdef char *behind
    if entity != NULL:
        entity.limit = limit
        return True
    if not hash_reserve(&table.entities):
        return False
    entity = <Entity *>calloc(1, sizeof(Entity) + <size_t>user.size_bytes + <size_t>client_id.size_bytes)
    if entity == NULL:
        return False
    behind = <char *>entity + sizeof(Entity)
    if user.size_bytes > 0:
        memcpy(behind, user.data, <size_t>user.size_bytes)
    if client_id.size_bytes > 0:
        memcpy(behind + user.size_bytes, client_id.data, <size_t>client_id.size_bytes)
    entity.user.data = behind
    entity.user.size_bytes = user.size_bytes
    entity.client_id.data = behind + user.size_bytes
    entity.client_id.size_bytes = client_id.size_bytes
    entity.level = level
    entity.limit = limit
    hash_add(&table.entities, &entity.node, hash_of(table.seed, level, user, client_id))
    table.at_level[level] += 1
    return True


cdef void entities_remove(EntityTable *table, int32_t level, Text user, Text client_id) noexcept nogil:
    cdef Entity *entity = find(table, level, user, client_id)
    if entity == NULL:
        return
    hash_remove(&table.entities, &entity.node)
    free(entity)
    table.at_level[level] -= 1


cdef void entities_clear(EntityTable *table) noexcept nogil:
    cdef HashNode *node = hash_after(&table.entities, NULL)
    cdef HashNode *following
    cdef int64_t i
    while node != NULL:
        following = hash_after(&table.entities, node)
        free(node)
        node = following
    hash_clear(&table.entities)
    for i in range(LEVELS + 1):
        table.at_level[i] = 0


cdef int64_t entities_bits(const EntityTable *table) noexcept nogil:
    cdef int64_t bits = 0
    if table.at_level[7] or table.at_level[8]:
        bits |= BIT_CLIENT_ID
    if table.at_level[3] or table.at_level[6]:
        bits |= BIT_USER
    if table.at_level[1] or table.at_level[2] or table.at_level[4] or table.at_level[5]:
        bits |= BIT_USER_CLIENT_ID
    return bits


cdef inline Entity *at_level(const EntityTable *table, int32_t level, Text user, Text client_id) noexcept nogil:
    """Return the quota of one level for a user and a client id."""
    cdef Text none
    none.data = NULL
    none.size_bytes = 0
    return find(table, level, user if level <= 3 else none, client_id if names_client_id(level) else none)


cdef double entities_limit(const EntityTable *table, Text user, Text client_id, int32_t *level) noexcept nogil:
    cdef Entity *entity = NULL
    cdef int32_t i
    for i in range(1, LEVELS + 1):
        if user.size_bytes == 0 and i <= 6 or user.size_bytes > 0 and i >= 7:
            continue
        if i <= 6 and (i == 3 or i == 6) != (client_id.size_bytes == 0) or i >= 7 and client_id.size_bytes == 0:
            continue
        entity = at_level(table, i, user, client_id)
        if entity != NULL:
            level[0] = i
            return entity.limit
    level[0] = 0
    return NO_LIMIT


cdef void entities_match(const EntityTable *table, Text user, Text client_id, Match *match) noexcept nogil:
    cdef int64_t bits = entities_bits(table)
    cdef bint with_user = False, with_client_id = True
    cdef int32_t i
    if bits == BIT_USER:
        with_user = True
        with_client_id = False
    elif bits == BIT_USER_CLIENT_ID:
        with_user = True
    elif bits != 0 and bits != BIT_CLIENT_ID:
        for i in range(1, LEVELS + 1):
            if at_level(table, i, user, client_id) != NULL:
                with_user = i <= 6
                with_client_id = i != 3 and i != 6
                break
    match.user = user
    match.client_id = client_id
    if not with_user:
        match.user.size_bytes = 0
    if not with_client_id:
        match.client_id.size_bytes = 0
    match.limit = entities_limit(table, match.user, match.client_id, &match.level)


class _DefaultEntity:
    """The default entity of a type: its quota applies where no other matches."""

    def __repr__(self):
        return "DEFAULT_ENTITY"


DEFAULT_ENTITY = _DefaultEntity()


def sanitize(str name not None) -> str:
    """Return a user's name for metric tags, percent-encoded as by Kafka's ``Sanitizer``."""
    from urllib.parse import quote

    return quote(name, safe="", encoding="utf-8", errors="replace").replace("~", "%7E")


cdef bytes encoded(object name, str what):
    if name is None:
        return b""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str or None, not {type(name).__name__}")
    return name.encode("utf-8", "surrogateescape")


cdef Text text_of(bytes data) noexcept:
    cdef Text text
    text.data = <const char *>data
    text.size_bytes = len(data)
    return text


cdef str decoded(Text text):
    return text.data[:text.size_bytes].decode("utf-8", "replace")


cdef int part_of(object name) noexcept:
    return PART_NONE if name is None else (PART_DEFAULT if name is DEFAULT_ENTITY else PART_EXACT)
