"""Growable arrays of one type of item. Header only, no lock: each array has one owner."""

cdef extern from *:
    """
    #include <cstddef>
    #include <cstdlib>
    #ifndef KBROKER_ARRAY_H
    #define KBROKER_ARRAY_H
    template <typename Item, typename Count>
    static inline bool kb_array_reserve(Item **items, Count count) noexcept {
        if (count & (count - 1)) return true;
        const std::size_t capacity = count > 0 ? static_cast<std::size_t>(count) * 2 : 1;
        Item *grown = static_cast<Item *>(std::realloc(*items, capacity * sizeof(Item)));
        if (grown == nullptr) return false;
        *items = grown;
        return true;
    }
    #endif
    """
    # Make memory for one item after the `count` that are in use; false, with the array unchanged, if memory is
    # exhausted. The items are owned (free) and NULL before the first one. The capacity is the power of two above the
    # count, so nothing stores it; items may be removed from the end.
    bint array_reserve "kb_array_reserve"[Item, Count](Item **items, Count count) noexcept nogil
