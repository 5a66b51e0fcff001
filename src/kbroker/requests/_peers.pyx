"""Native handlers of the nodes in one process. See _peers.pxd."""
from libc.stdlib cimport calloc, free

from kbroker._core.sync cimport (
    atomic_add_fetch, atomic_store, cond_broadcast, cond_destroy, cond_init, cond_wait, mutex_destroy, mutex_init,
    mutex_lock, mutex_unlock,
)
from kbroker._core.timer.purgatory cimport Key, purgatory_check_and_complete
from kbroker.requests._native_types cimport NativeApisCore, Peers


cdef bint peers_join(NativeApisCore *native_apis, NativeApisCore *peer) noexcept nogil:
    cdef Peers *peers = peer.peers
    if peers == NULL:           # the peer serves no request yet
        peers = <Peers *>calloc(1, sizeof(Peers))
        if peers == NULL:
            return False
        mutex_init(&peers.lock)
        cond_init(&peers.visit_ended)
        atomic_store(&peers.refs, 1)
        peers.first = peer
        peer.peers = peers
    mutex_lock(&peers.lock)
    atomic_add_fetch(&peers.refs, 1)
    native_apis.peers = peers
    native_apis.next_peer = peers.first
    peers.first = native_apis
    mutex_unlock(&peers.lock)
    return True


cdef void peers_leave(NativeApisCore *native_apis) noexcept nogil:
    cdef Peers *peers = native_apis.peers
    cdef NativeApisCore **at
    if peers == NULL:
        return
    mutex_lock(&peers.lock)
    native_apis.is_leaving = True           # no new visit begins
    while native_apis.visits > 0:           # until they end, the node stays in the list that its visitors follow
        cond_wait(&peers.visit_ended, &peers.lock)
    at = &peers.first
    while at[0] != NULL and at[0] != native_apis:
        at = &at[0].next_peer
    if at[0] != NULL:
        at[0] = native_apis.next_peer
    mutex_unlock(&peers.lock)


cdef void peers_release(NativeApisCore *native_apis) noexcept nogil:
    cdef Peers *peers = native_apis.peers
    if peers != NULL and atomic_add_fetch(&peers.refs, -1) == 0:
        cond_destroy(&peers.visit_ended)
        mutex_destroy(&peers.lock)
        free(peers)


cdef void peers_check_fetches(NativeApisCore *native_apis, Key *key) noexcept nogil:
    cdef Peers *peers = native_apis.peers
    cdef NativeApisCore *peer
    if peers == NULL:
        return
    mutex_lock(&peers.lock)
    peer = peers.first
    while peer != NULL:
        if peer != native_apis and not peer.is_leaving:
            peer.visits += 1
            mutex_unlock(&peers.lock)
            purgatory_check_and_complete(peer.fetch_purgatory, key)
            mutex_lock(&peers.lock)
            peer.visits -= 1
            if peer.visits == 0 and peer.is_leaving:
                cond_broadcast(&peers.visit_ended)
        peer = peer.next_peer
    mutex_unlock(&peers.lock)
