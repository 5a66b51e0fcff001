"""Table of the authorizer's rules, for handlers without the GIL; a decision takes the same time with 100,000 rules.

A rule's permissions are bits of operations, found by pattern, principal and host: a look-up searches for the name
itself, the wildcard, and each length that a prefix has. The result covers every operation, so each native handler keeps
its latest decisions in a ``DecisionCache``, valid for a generation of the table.

Locks: ``AclTable.lock`` (rules), ``AclTable.caches_lock`` (list of caches), ``DecisionNotes.lock``; leaves, none of
which is acquired under another. A change applies to every request that begins after ``apply`` has returned.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from kbroker._core.containers.hash_table cimport HashNode, HashTable
from kbroker._core.requests.request cimport Request, Session
from kbroker._core.sync cimport AtomicI64, Mutex
from kbroker.security.authorizer._decision_notes cimport DecisionNotes
from kbroker.security.authorizer._prefix_lengths cimport PrefixLengths

cdef enum AclResource:          # Kafka's codes
    ACL_TOPIC = 2
    ACL_GROUP = 3
    ACL_CLUSTER = 4
    ACL_TRANSACTIONAL_ID = 5
    ACL_RESOURCES = 8

cdef enum AclOperation:
    ACL_ALL = 2
    ACL_READ = 3
    ACL_WRITE = 4
    ACL_DELETE = 6
    ACL_ALTER = 7
    ACL_DESCRIBE = 8
    ACL_CLUSTER_ACTION = 9
    ACL_DESCRIBE_CONFIGS = 10
    ACL_ALTER_CONFIGS = 11
    ACL_OPERATIONS = 16

cdef enum:
    CACHED_DECISIONS = 256      # of each handler thread, a power of two
    CACHED_NAME_BYTES = 249     # longer names are looked up each time; no topic has one
    ACL_HOST_BYTES = 64

cdef struct Decision:
    Session *session            # counted; NULL: free
    int64_t generation
    uint32_t permitted          # a bit for each operation
    int32_t kind
    int32_t name_bytes
    int32_t host_bytes          # -1: no rule has a host
    char host[ACL_HOST_BYTES]
    char name[CACHED_NAME_BYTES + 1]

cdef struct DecisionCache:      # of one handler thread
    DecisionCache *next         # AclTable.caches_lock, like prev
    DecisionCache *prev
    AclTable *table             # counted
    AtomicI64 allowed           # written only by its thread
    AtomicI64 denied
    Decision *latest            # last result, or NULL
    Decision decisions[CACHED_DECISIONS]

cdef struct AclTable:
    AtomicI64 refs
    AtomicI64 generation        # changes with every change of the rules
    AtomicI64 host_rules        # number of rules with a host
    AtomicI64 allowed           # decisions, except those counted by caches
    AtomicI64 denied
    AtomicI64 notes_allowed     # whether the log needs allowed decisions too
    uint64_t seed               # secret
    bint allows_without_rule    # set at the start, like the super users
    HashTable super_users
    Mutex lock                  # guards the next three
    HashTable patterns
    HashTable rules
    PrefixLengths prefixes[ACL_RESOURCES]
    Mutex caches_lock           # guards the list of caches
    DecisionCache *caches
    DecisionNotes denied_notes  # for the log; each has its own lock
    DecisionNotes allowed_notes

cdef AclTable *acl_table_retain(AclTable *table) noexcept nogil
cdef void acl_table_release(AclTable *table) noexcept nogil
cdef DecisionCache *decision_cache_new(AclTable *table) noexcept nogil      # NULL: out of memory
cdef void decision_cache_free(DecisionCache *cache) noexcept nogil          # NULL: nothing

# Return whether the client of a request is allowed an operation. The decision is counted, and noted for the log if it
# is denied or the log needs all. ``cache``: the calling thread's, or NULL. ``references``: how often the request names
# the resource.
cdef bint acl_allows(AclTable *table, DecisionCache *cache, Request *request, int operation, int kind, const char *name,
                     int64_t name_bytes, int32_t references) noexcept nogil

# The same, neither counted nor noted: for repeated checks.
cdef bint acl_permits(AclTable *table, DecisionCache *cache, Request *request, int operation, int kind,
                      const char *name, int64_t name_bytes) noexcept nogil

cdef class AclRules:
    cdef AclTable *table        # counted
