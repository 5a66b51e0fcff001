/* The allocator's limits, and the return of free memory to the system. For glibc only; elsewhere nothing happens. */
#ifndef KBROKER_ALLOCATOR_H
#define KBROKER_ALLOCATOR_H
#include <stdlib.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#define KB_TRIM_BYTES (4 << 20)        /* free memory at the end of an arena that stays for the next requests */
#define KB_ARENA_TOKEN_BYTES 2048      /* larger than the blocks of a thread's cache, so from its arena */
#define KB_ARENA_PROBE_BYTES (128 << 10)       /* freeing so much makes glibc look at the end of the arena */

/* Big receive buffers go back to the system when freed: glibc would otherwise raise its threshold up to 32 MiB. */
static inline void kb_fix_big_allocations(void) {
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, KB_TRIM_BYTES);
#endif
}

/* A block of the calling thread's arena; NULL: out of memory, or not glibc. */
static inline void *kb_arena_token(void) {
#if defined(__GLIBC__)
    return malloc(KB_ARENA_TOKEN_BYTES);
#else
    return NULL;
#endif
}

/* Whether two tokens are certainly from one arena: every arena but the main one consists of areas of 64 MiB. */
static inline int kb_share_arena(const void *a, const void *b) {
    return (size_t)a >> 26 == (size_t)b >> 26;
}

/* malloc_trim returns whole free pages of every arena, but the free end of the main arena only. The end of another one
 * is examined when a large block of it is freed: so its token grows and shrinks, and stays in its arena whichever
 * thread does this. The tokens are replaced. */
static inline void kb_release_free_memory(void **tokens, int count) {
#if defined(__GLIBC__)
    mallopt(M_TRIM_THRESHOLD, KB_ARENA_PROBE_BYTES / 2);
    for (int i = 0; i < count; i++) {
        void *grown = realloc(tokens[i], KB_ARENA_PROBE_BYTES);
        if (grown == NULL) continue;
        void *shrunk = realloc(grown, KB_ARENA_TOKEN_BYTES);
        tokens[i] = shrunk != NULL ? shrunk : grown;
    }
    mallopt(M_TRIM_THRESHOLD, KB_TRIM_BYTES);
    malloc_trim(0);
#else
    (void)tokens;
    (void)count;
#endif
}
#endif
