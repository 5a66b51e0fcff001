"""The rules of the authorizer, as handlers ask them: without the GIL, in the same time for a hundred thousand rules.

A rule's permissions are bits of operations, found by pattern, principal and host: a question looks up the name itself,
the wildcard, and each length that a prefix has. What it finds holds for every operation, so each native handler keeps
the latest answers in a ``DecisionCache``, valid for a generation of the table.

Locks: ``AclTable.lock`` (rules), ``AclTable.caches_lock`` (list of caches), ``DecisionNotes.lock``; leaves, and none is
taken under another. A change is in force for every request that begins after ``apply`` has returned.
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
    CACHED_NAME_BYTES = 249     # a longer name is looked up each time; no topic has one
    ACL_HOST_BYTES = 64

cdef struct Decision:
    Session *session            # counted; NULL: free
    int64_t generation
    uint32_t permitted          # a bit for each operation
    int32_t kind
    int32_t name_bytes
    int32_t host_bytes          # -1: no rule names a host
    char host[ACL_HOST_BYTES]
    char name[CACHED_NAME_BYTES + 1]

cdef struct DecisionCache:      # of one handler thread
    DecisionCache *next         # AclTable.caches_lock, and so is prev
    DecisionCache *prev
    AclTable *table             # counted
    AtomicI64 allowed           # written by its thread alone
    AtomicI64 denied
    Decision *latest            # what was found last; NULL: nothing was
    Decision decisions[CACHED_DECISIONS]

cdef struct AclTable:
    AtomicI64 refs
    AtomicI64 generation        # changes with every change of the rules
    AtomicI64 host_rules        # rules that name a host
    AtomicI64 allowed           # decisions, but those counted by caches
    AtomicI64 denied
    AtomicI64 notes_allowed     # whether the log wants decisions with yes too
    uint64_t seed               # secret
    bint allows_without_rule    # set at the start, and so are the super users
    HashTable super_users
    Mutex lock                  # guards the next three
    HashTable patterns
    HashTable rules
    PrefixLengths prefixes[ACL_RESOURCES]
    Mutex caches_lock           # guards the list of caches
    DecisionCache *caches
    DecisionNotes denied_notes  # for the log; each has its lock
    DecisionNotes allowed_notes

cdef AclTable *acl_table_retain(AclTable *table) noexcept nogil
cdef void acl_table_release(AclTable *table) noexcept nogil
cdef DecisionCache *decision_cache_new(AclTable *table) noexcept nogil      # NULL: memory is out
cdef void decision_cache_free(DecisionCache *cache) noexcept nogil          # NULL: nothing

# Whether the client of a request may do something; counted, and noted for the log where it may not, or the log wants
# all. ``cache``: the calling thread's, or NULL. ``references``: how often the request names the resource.
cdef bint acl_allows(AclTable *table, DecisionCache *cache, Request *request, int operation, int kind, const char *name,
                     int64_t name_bytes, int32_t references) noexcept nogil

# The same, neither counted nor noted: for those who ask again.
cdef bint acl_permits(AclTable *table, DecisionCache *cache, Request *request, int operation, int kind,
                      const char *name, int64_t name_bytes) noexcept nogil

cdef class AclRules:
    cdef AclTable *table        # owned count
