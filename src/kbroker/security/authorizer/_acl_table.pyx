"""Table of the authorizer's rules. See _acl_table.pxd. Source: ``StandardAuthorizerData.findAclRule``."""
cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strlen

import os

from kbroker._core.containers.hash_table cimport (
    HashNode, HashTable, hash_add, hash_after, hash_clear, hash_first, hash_next, hash_remove, hash_reserve,
)
from kbroker._core.containers.hashing cimport hash_seeded, mix_hash
from kbroker._core.network.loop_types cimport Channel
from kbroker._core.requests.request cimport Request, Session, session_release, session_retain
from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_load, atomic_load_relaxed, atomic_store, mutex_destroy, mutex_init, mutex_lock,
    mutex_unlock,
)
from kbroker.common._text cimport Text, same_text, text_at
from kbroker.network._kafka_request cimport kafka_request
from kbroker.security.authorizer._decision_notes cimport note_decision, notes_destroy, notes_init, taken_notes
from kbroker.security.authorizer._prefix_lengths cimport PrefixLengths, prefix_added, prefix_removed

cdef enum:
    LITERAL = 3                 # pattern types, by Kafka's codes
    PREFIXED = 4
    DENY = 2                    # permissions

cdef enum:                      # bits of operations
    EVERYTHING = 0xFFF8         # READ to the last one
    IMPLY_DESCRIBE = (1 << ACL_READ) | (1 << ACL_WRITE) | (1 << ACL_DELETE) | (1 << ACL_ALTER)
    IMPLY_DESCRIBE_CONFIGS = 1 << ACL_ALTER_CONFIGS

cdef struct Principal:          # a super user
    HashNode node               # first
    int64_t size_bytes
    char *text                  # after the struct

cdef struct AclPattern:         # pattern with rules
    HashNode node               # first
    int kind
    int pattern_type
    int64_t name_bytes
    int64_t rule_count
    char *name                  # after the struct

cdef struct AclRule:            # the rules about a pattern for one principal and host
    HashNode node               # first
    AclPattern *pattern
    int64_t principal_bytes
    int64_t host_bytes
    uint32_t allowed            # bits of operations
    uint32_t denied
    char *texts                 # after the struct: principal, host

cdef struct Change:             # a rule to be added or removed
    bint adds
    int kind
    int pattern_type
    int operation
    int permission
    Text name
    Text principal
    Text host


cdef inline bint is_wildcard(Text text) noexcept nogil:
    return text.size_bytes == 1 and text.data[0] == c"*"


# ---------------------------------------------------------------- rules, under AclTable.lock

cdef inline uint64_t pattern_hash(AclTable *table, int kind, int pattern_type, Text name) noexcept nogil:
    return hash_seeded(name.data, name.size_bytes, table.seed + <uint64_t>(kind * 8 + pattern_type))


cdef inline uint64_t rule_hash(AclTable *table, const AclPattern *pattern, Text principal, Text host) noexcept nogil:
    cdef uint64_t h = hash_seeded(principal.data, principal.size_bytes, pattern.node.hash)
    return hash_seeded(host.data, host.size_bytes, h)


cdef AclPattern *find_pattern(AclTable *table, int kind, int pattern_type, Text name) noexcept nogil:
    cdef HashNode *node = hash_first(&table.patterns, pattern_hash(table, kind, pattern_type, name))
    cdef AclPattern *pattern
    while node != NULL:
        pattern = <AclPattern *>node
        if pattern.kind == kind and pattern.pattern_type == pattern_type and same_text(
                text_at(pattern.name, pattern.name_bytes), name):
            return pattern
        node = hash_next(node)
    return NULL


cdef AclRule *find_rule(AclTable *table, const AclPattern *pattern, Text principal, Text host) noexcept nogil:
    cdef HashNode *node = hash_first(&table.rules, rule_hash(table, pattern, principal, host))
    cdef AclRule *rule
    while node != NULL:
        rule = <AclRule *>node
        if rule.pattern == pattern and same_text(
                text_at(rule.texts, rule.principal_bytes), principal) and same_text(
                text_at(rule.texts + rule.principal_bytes, rule.host_bytes), host):
            return rule
        node = hash_next(node)
    return NULL


cdef AclPattern *new_pattern(AclTable *table, const Change *change) noexcept nogil:
    cdef AclPattern *pattern
    if not hash_reserve(&table.patterns):
        return NULL
    pattern = <AclPattern *>calloc(1, sizeof(AclPattern) + <size_t>change.name.size_bytes)
    if pattern == NULL:
        return NULL
    if change.pattern_type == PREFIXED and not prefix_added(
            &table.prefixes[change.kind], <int32_t>change.name.size_bytes):
        free(pattern)
        return NULL
    pattern.kind = change.kind
    pattern.pattern_type = change.pattern_type
    pattern.name = <char *>(pattern + 1)
    pattern.name_bytes = change.name.size_bytes
    memcpy(pattern.name, change.name.data, <size_t>change.name.size_bytes)
    hash_add(&table.patterns, &pattern.node, pattern_hash(table, change.kind, change.pattern_type, change.name))
    return pattern


cdef void drop_pattern(AclTable *table, AclPattern *pattern) noexcept nogil:
    if pattern.pattern_type == PREFIXED:
        prefix_removed(&table.prefixes[pattern.kind], <int32_t>pattern.name_bytes)
    hash_remove(&table.patterns, &pattern.node)
    free(pattern)


cdef bint add_rule(AclTable *table, const Change *change) noexcept nogil:
    """Add a rule. False: out of memory; the table is then unchanged."""
    cdef AclPattern *pattern = find_pattern(table, change.kind, change.pattern_type, change.name)
    cdef AclRule *rule
    if pattern == NULL:
        pattern = new_pattern(table, change)
        if pattern == NULL:
            return False
    rule = find_rule(table, pattern, change.principal, change.host)
    if rule == NULL:
        if hash_reserve(&table.rules):
            rule = <AclRule *>calloc(1, sizeof(AclRule) + <size_t>(
                change.principal.size_bytes + change.host.size_bytes))
        if rule == NULL:
            if pattern.rule_count == 0:
                drop_pattern(table, pattern)
            return False
        rule.pattern = pattern
        rule.texts = <char *>(rule + 1)
        rule.principal_bytes = change.principal.size_bytes
        rule.host_bytes = change.host.size_bytes
        memcpy(rule.texts, change.principal.data, <size_t>rule.principal_bytes)
        memcpy(rule.texts + rule.principal_bytes, change.host.data, <size_t>rule.host_bytes)
        hash_add(&table.rules, &rule.node, rule_hash(table, pattern, change.principal, change.host))
        pattern.rule_count += 1
        if not is_wildcard(change.host):
            atomic_add_fetch(&table.host_rules, 1)
    if change.permission == DENY:
        rule.denied |= <uint32_t>1 << change.operation
    else:
        rule.allowed |= <uint32_t>1 << change.operation
    return True


cdef void remove_rule(AclTable *table, const Change *change) noexcept nogil:
    cdef AclPattern *pattern = find_pattern(table, change.kind, change.pattern_type, change.name)
    cdef AclRule *rule = NULL
    if pattern != NULL:
        rule = find_rule(table, pattern, change.principal, change.host)
    if rule == NULL:
        return
    if change.permission == DENY:
        rule.denied &= ~(<uint32_t>1 << change.operation)
    else:
        rule.allowed &= ~(<uint32_t>1 << change.operation)
    if rule.denied | rule.allowed:
        return
    hash_remove(&table.rules, &rule.node)
    free(rule)
    if not is_wildcard(change.host):
        atomic_add_fetch(&table.host_rules, -1)
    pattern.rule_count -= 1
    if pattern.rule_count == 0:
        drop_pattern(table, pattern)


cdef void gather(AclTable *table, const AclPattern *pattern, Text principal, Text host, uint32_t *allowed,
                 uint32_t *denied, bint *has_rules) noexcept nogil:
    """Collect the operations of a pattern's rules for a client: rules for its principal or any, at its host or any."""
    cdef Text principals[2]
    cdef Text hosts[2]
    cdef AclRule *rule
    cdef int i, k, host_count = 1
    if pattern == NULL:
        return
    has_rules[0] = True
    principals[0] = principal
    principals[1] = text_at(b"User:*", 6)
    hosts[0] = text_at(b"*", 1)
    if atomic_load_relaxed(&table.host_rules) != 0 and not is_wildcard(host):
        hosts[1] = host
        host_count = 2
    for i in range(2):
        for k in range(host_count):
            rule = find_rule(table, pattern, principals[i], hosts[k])
            if rule != NULL:
                allowed[0] |= rule.allowed
                denied[0] |= rule.denied


cdef uint32_t decide(AclTable *table, int kind, Text name, Text principal, Text host) noexcept nogil:
    """Return the operations that a client may do; its principal must not be a super user."""
    cdef PrefixLengths *prefixes = &table.prefixes[kind]
    cdef uint32_t allowed = 0, denied = 0
    cdef bint has_rules = False
    cdef int32_t i
    mutex_lock(&table.lock)
    if table.patterns.count > 0:
        gather(table, find_pattern(table, kind, LITERAL, name), principal, host, &allowed, &denied, &has_rules)
        gather(table, find_pattern(table, kind, LITERAL, text_at(b"*", 1)),
               principal, host, &allowed, &denied, &has_rules)
        for i in range(prefixes.size):
            if prefixes.lengths[i] > name.size_bytes:
                break
            gather(table, find_pattern(table, kind, PREFIXED, text_at(name.data, prefixes.lengths[i])), principal, host,
                   &allowed, &denied, &has_rules)
    mutex_unlock(&table.lock)
    if not has_rules and table.allows_without_rule:
        return EVERYTHING
    if allowed & (1 << ACL_ALL):
        allowed = EVERYTHING
    if allowed & IMPLY_DESCRIBE:
        allowed |= 1 << ACL_DESCRIBE
    if allowed & IMPLY_DESCRIBE_CONFIGS:
        allowed |= 1 << ACL_DESCRIBE_CONFIGS
    if denied & (1 << ACL_ALL):
        denied = EVERYTHING
    return allowed & ~denied & EVERYTHING


cdef bint is_super_user(AclTable *table, Text principal) noexcept nogil:
    cdef HashNode *node
    if table.super_users.count == 0:
        return False
    node = hash_first(&table.super_users, hash_seeded(principal.data, principal.size_bytes, table.seed))
    while node != NULL:
        if same_text(text_at((<Principal *>node).text, (<Principal *>node).size_bytes), principal):
            return True
        node = hash_next(node)
    return False


cdef inline uint32_t operations_of(AclTable *table, int kind, Text name, Text principal, Text host) noexcept nogil:
    if is_super_user(table, principal):
        return EVERYTHING
    return decide(table, kind, name, principal, host)


# ---------------------------------------------------------------- requests

cdef inline Text principal_of(const Session *session) noexcept nogil:
    if session == NULL:
        return text_at(b"", 0)
    return text_at(session.principal, <int64_t>strlen(session.principal))


cdef inline Text host_of(const Request *request) noexcept nogil:
    cdef const Channel *channel = <const Channel *>request.channel
    if channel == NULL:
        return text_at(b"", 0)
    return text_at(channel.metadata.remote_host, <int64_t>strlen(channel.metadata.remote_host))


cdef inline bint holds(const Decision *decision, const Session *session, int64_t generation, int kind, Text name,
                       bint host_counts, Text host) noexcept nogil:
    """Return whether a cached decision is about this client and resource."""
    return decision.session == session and decision.generation == generation and decision.kind == kind and (
        same_text(text_at(decision.name, decision.name_bytes), name)) and (
        same_text(text_at(decision.host, decision.host_bytes), host) if host_counts else decision.host_bytes < 0)


cdef uint32_t operations_of_request(AclTable *table, DecisionCache *cache, Request *request, int kind,
                                    Text name) noexcept nogil:
    # read first: the decision has this generation or a later one
    cdef int64_t generation = atomic_load(&table.generation)
    cdef bint host_counts = atomic_load_relaxed(&table.host_rules) != 0
    cdef Text host = host_of(request) if host_counts else text_at(b"*", 1)
    cdef Session *session = request.session
    cdef Decision *decision
    cdef uint64_t h
    if cache != NULL and cache.latest != NULL and holds(
            cache.latest, session, generation, kind, name, host_counts, host):
        return cache.latest.permitted
    if cache == NULL or name.size_bytes > CACHED_NAME_BYTES or host.size_bytes >= ACL_HOST_BYTES or session == NULL:
        return operations_of(table, kind, name, principal_of(session), host)
    h = hash_seeded(name.data, name.size_bytes, table.seed ^ mix_hash(<uint64_t>session + <uint64_t>kind))
    decision = &cache.decisions[h & (CACHED_DECISIONS - 1)]
    cache.latest = decision
    if holds(decision, session, generation, kind, name, host_counts, host):
        return decision.permitted
    if decision.session != session:
        session_release(decision.session)
        decision.session = session_retain(session)
    decision.permitted = operations_of(table, kind, name, principal_of(session), host)
    decision.generation = generation
    decision.kind = kind
    decision.name_bytes = <int32_t>name.size_bytes
    memcpy(decision.name, name.data, <size_t>name.size_bytes)
    decision.host_bytes = -1
    if host_counts:
        decision.host_bytes = <int32_t>host.size_bytes
        memcpy(decision.host, host.data, <size_t>host.size_bytes)
    return decision.permitted


cdef bint acl_permits(AclTable *table, DecisionCache *cache, Request *request, int operation, int kind,
                      const char *name, int64_t name_bytes) noexcept nogil:
    return (operations_of_request(table, cache, request, kind, text_at(name, name_bytes)) >> operation) & 1


cdef bint acl_allows(AclTable *table, DecisionCache *cache, Request *request, int operation, int kind, const char *name,
                     int64_t name_bytes, int32_t references) noexcept nogil:
    cdef Text text = text_at(name, name_bytes)
    cdef bint allowed = (operations_of_request(table, cache, request, kind, text) >> operation) & 1
    if cache != NULL:           # written only by its thread
        if allowed:
            atomic_store(&cache.allowed, atomic_load_relaxed(&cache.allowed) + 1)
        else:
            atomic_store(&cache.denied, atomic_load_relaxed(&cache.denied) + 1)
    else:
        atomic_add_fetch(&table.allowed if allowed else &table.denied, 1)
    if not allowed or atomic_load_relaxed(&table.notes_allowed) != 0:
        note_decision(&table.allowed_notes if allowed else &table.denied_notes, principal_of(request.session),
                      host_of(request), kafka_request(request).api_key, operation, kind, text, references)
    return allowed


# ------------------------------------------------------------ lifetime

cdef DecisionCache *decision_cache_new(AclTable *table) noexcept nogil:
    cdef DecisionCache *cache = <DecisionCache *>calloc(1, sizeof(DecisionCache))
    if cache == NULL:
        return NULL
    cache.table = acl_table_retain(table)
    mutex_lock(&table.caches_lock)
    cache.next = table.caches
    if cache.next != NULL:
        cache.next.prev = cache
    table.caches = cache
    mutex_unlock(&table.caches_lock)
    return cache


cdef void decision_cache_free(DecisionCache *cache) noexcept nogil:
    cdef AclTable *table
    cdef int i
    if cache == NULL:
        return
    table = cache.table
    mutex_lock(&table.caches_lock)
    if cache.next != NULL:
        cache.next.prev = cache.prev
    if cache.prev != NULL:
        cache.prev.next = cache.next
    else:
        table.caches = cache.next
    atomic_add_fetch(&table.allowed, atomic_load(&cache.allowed))
    atomic_add_fetch(&table.denied, atomic_load(&cache.denied))
    mutex_unlock(&table.caches_lock)
    for i in range(CACHED_DECISIONS):
        session_release(cache.decisions[i].session)
    free(cache)
    acl_table_release(table)


cdef AclTable *acl_table_retain(AclTable *table) noexcept nogil:
    if table != NULL:
        atomic_add_fetch(&table.refs, 1)
    return table


cdef void free_nodes(HashTable *table) noexcept nogil:
    cdef HashNode *node = hash_after(table, NULL)
    cdef HashNode *following
    while node != NULL:
        following = hash_after(table, node)
        free(node)
        node = following
    hash_clear(table)


cdef void acl_table_release(AclTable *table) noexcept nogil:
    cdef int i
    if table == NULL or atomic_add_fetch(&table.refs, -1) != 0:
        return
    free_nodes(&table.rules)
    free_nodes(&table.patterns)
    free_nodes(&table.super_users)
    for i in range(ACL_RESOURCES):
        free(table.prefixes[i].lengths)
        free(table.prefixes[i].counts)
    mutex_destroy(&table.lock)
    mutex_destroy(&table.caches_lock)
    notes_destroy(&table.denied_notes)
    notes_destroy(&table.allowed_notes)
    free(table)


# ---------------------------------------------------------------- Python

cdef bytes encoded(str text):
    return text.encode("utf-8", "surrogateescape")


cdef Text view_of(bytes data):
    return text_at(<const char *>data, len(data))


@cython.final
cdef class AclRules:
    """Rules and super users, for native handlers and for Python.

    Args: super_users: principals that may do everything. allows_without_rule: decision for a resource without rules.
    Threads: any.
    """

    def __cinit__(self, super_users=(), bint allows_without_rule=False):
        cdef AclTable *table = <AclTable *>calloc(1, sizeof(AclTable))
        cdef Principal *principal
        cdef bytes name
        if table == NULL:
            raise MemoryError
        self.table = table
        atomic_store(&table.refs, 1)
        mutex_init(&table.lock)
        mutex_init(&table.caches_lock)
        table.seed = int.from_bytes(os.urandom(8), "little")
        notes_init(&table.denied_notes, table.seed)
        notes_init(&table.allowed_notes, table.seed)
        table.allows_without_rule = allows_without_rule
        for text in super_users:
            name = encoded(text)
            principal = <Principal *>calloc(1, sizeof(Principal) + <size_t>(len(name) or 1))
            if principal == NULL or not hash_reserve(&table.super_users):
                free(principal)
                raise MemoryError
            principal.text = <char *>(principal + 1)
            principal.size_bytes = len(name)
            memcpy(principal.text, <const char *>name, <size_t>len(name))
            hash_add(&table.super_users, &principal.node, hash_seeded(principal.text, len(name), table.seed))

    def __dealloc__(self):
        acl_table_release(self.table)

    def apply(self, removed, added):
        """Remove rules, then add others, in one step: ``Acl`` tuples whose hosts are in normal form.

        Raises: MemoryError; the rules before the failed one are then changed. ValueError for an unknown resource type
        or operation; no rule is then changed.
        """
        cdef AclTable *table = self.table
        cdef list texts = []
        cdef Py_ssize_t count = len(removed) + len(added), i = 0
        cdef Change *changes = <Change *>calloc(<size_t>(count or 1), sizeof(Change))
        cdef bint has_room = True
        if changes == NULL:
            raise MemoryError
        try:
            for is_added, acls in ((False, removed), (True, added)):
                for kind, name, pattern_type, principal, host, operation, permission in acls:
                    if not (0 <= kind < ACL_RESOURCES and 0 <= operation < ACL_OPERATIONS):
                        raise ValueError(f"a rule about type {kind} and operation {operation} is unknown")
                    row = (encoded(name), encoded(principal), encoded(host))
                    texts.append(row)       # keeps the bytes alive until the changes are made
                    changes[i].adds = is_added
                    changes[i].kind = kind
                    changes[i].pattern_type = pattern_type
                    changes[i].operation = operation
                    changes[i].permission = permission
                    changes[i].name = view_of(row[0])
                    changes[i].principal = view_of(row[1])
                    changes[i].host = view_of(row[2])
                    i += 1
            with nogil:
                mutex_lock(&table.lock)
                for i in range(count):
                    if not changes[i].adds:
                        remove_rule(table, &changes[i])
                    elif not add_rule(table, &changes[i]):
                        has_room = False
                        break
                atomic_add_fetch(&table.generation, 1)
                mutex_unlock(&table.lock)
        finally:
            free(changes)
        if not has_room:
            raise MemoryError

    def permitted(self, int kind, str name not None, str principal not None, str host not None):
        """Return the operations that a client may do with a resource: a bit for each; uncounted. Raises: ValueError."""
        cdef bytes name_data = encoded(name), principal_data = encoded(principal), host_data = encoded(host)
        cdef Text name_view = view_of(name_data), principal_view = view_of(principal_data)
        cdef Text host_view = view_of(host_data)
        cdef AclTable *table = self.table
        cdef uint32_t found
        if not 0 <= kind < ACL_RESOURCES:
            raise ValueError(f"a resource type must be 0 to {ACL_RESOURCES - 1}, got {kind}")
        with nogil:
            found = operations_of(table, kind, name_view, principal_view, host_view)
        return found

    def count(self, int64_t allowed, int64_t denied):
        """Count decisions made by Python."""
        atomic_add_fetch(&self.table.allowed, allowed)
        atomic_add_fetch(&self.table.denied, denied)

    def note(self, bint is_allowed, str principal not None, str host not None, int16_t api_key, int operation,
             int kind, str name not None, int32_t references):
        """Note a decision for the log."""
        cdef bytes name_data = encoded(name), principal_data = encoded(principal), host_data = encoded(host)
        cdef Text name_view = view_of(name_data), principal_view = view_of(principal_data)
        cdef Text host_view = view_of(host_data)
        cdef AclTable *table = self.table
        with nogil:
            note_decision(&table.allowed_notes if is_allowed else &table.denied_notes, principal_view, host_view,
                          api_key, operation, kind, name_view, references)

    def take_notes(self, bint is_allowed):
        """Return the noted decisions, allowed or denied, and the number of further ones; both are cleared."""
        return taken_notes(&self.table.allowed_notes if is_allowed else &self.table.denied_notes)

    @property
    def notes_allowed(self):
        """Return whether allowed decisions are noted too, for a log that needs them."""
        return atomic_load_relaxed(&self.table.notes_allowed) != 0

    @notes_allowed.setter
    def notes_allowed(self, bint value):
        atomic_store(&self.table.notes_allowed, value)

    def prefix_lengths(self, int kind):
        """Return the distinct lengths in bytes of the prefixes in rules about a resource type."""
        cdef int32_t *lengths
        cdef int32_t i, count
        with nogil:
            mutex_lock(&self.table.lock)
            count = self.table.prefixes[kind].size
            lengths = <int32_t *>malloc(<size_t>(count + 1) * sizeof(int32_t))
            if lengths != NULL and count > 0:
                memcpy(lengths, self.table.prefixes[kind].lengths, <size_t>count * sizeof(int32_t))
            mutex_unlock(&self.table.lock)
        if lengths == NULL:
            raise MemoryError
        found = [lengths[i] for i in range(count)]
        free(lengths)
        return found

    def bits(self, int kind, int pattern_type, str name not None, str principal not None, str host not None):
        """Return the allowed and denied operations of rules about exactly this pattern, principal and host, as bits."""
        cdef bytes name_data = encoded(name), principal_data = encoded(principal), host_data = encoded(host)
        cdef Text name_view = view_of(name_data), principal_view = view_of(principal_data)
        cdef Text host_view = view_of(host_data)
        cdef AclPattern *pattern
        cdef AclRule *rule = NULL
        cdef uint32_t allowed = 0, denied = 0
        with nogil:
            mutex_lock(&self.table.lock)
            pattern = find_pattern(self.table, kind, pattern_type, name_view)
            if pattern != NULL:
                rule = find_rule(self.table, pattern, principal_view, host_view)
            if rule != NULL:
                allowed, denied = rule.allowed, rule.denied
            mutex_unlock(&self.table.lock)
        return allowed, denied

    @property
    def decisions(self):
        """Numbers of allowed and denied decisions."""
        cdef AclTable *table = self.table
        cdef DecisionCache *cache
        cdef int64_t allowed, denied
        with nogil:
            mutex_lock(&table.caches_lock)
            allowed = atomic_load(&table.allowed)
            denied = atomic_load(&table.denied)
            cache = table.caches
            while cache != NULL:
                allowed += atomic_load(&cache.allowed)
                denied += atomic_load(&cache.denied)
                cache = cache.next
            mutex_unlock(&table.caches_lock)
        return allowed, denied

    @property
    def generation(self):
        """Number that changes with every change of the rules."""
        return atomic_load(&self.table.generation)
