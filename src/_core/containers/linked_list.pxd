"""Intrusive doubly linked list, header only: its entries carry the links. Each operation is O(1), none allocates.

The owner of an item computes the address of its node and back. The list has no lock: its owner guards it.
"""

cdef struct ChainNode:
    ChainNode *next
    ChainNode *prev

cdef struct Chain:              # zeroed: empty
    ChainNode *first
    ChainNode *last


cdef inline void chain_insert(Chain *chain, ChainNode *node, ChainNode *after) noexcept nogil:
    """Insert a node after ``after``, or before all others if it is NULL."""
    node.prev = after
    node.next = after.next if after != NULL else chain.first
    if after != NULL:
        after.next = node
    else:
        chain.first = node
    if node.next != NULL:
        node.next.prev = node
    else:
        chain.last = node


cdef inline void chain_append(Chain *chain, ChainNode *node) noexcept nogil:
    chain_insert(chain, node, chain.last)


cdef inline void chain_remove(Chain *chain, ChainNode *node) noexcept nogil:
    """Remove a node of the chain."""
    if node.prev != NULL:
        node.prev.next = node.next
    else:
        chain.first = node.next
    if node.next != NULL:
        node.next.prev = node.prev
    else:
        chain.last = node.prev
    node.next = node.prev = NULL
