/* Transactions: the only way in which truth changes once a record is in use (DESIGN.md, rule 2).
 *
 * For example, a settlement stages a state word and a number with td_put, and td_commit stores both or neither:
 *
 *     td_put(&tx, word of the state, SETTLED);    an entry of the redo slot, which no reader looks at yet
 *     td_put(&tx, &client->next_outcome, 8);      one more
 *     td_commit(&tx);                             redo_count = 2; both words; redo_count = 0
 *
 * A start that finds redo_count = 2 stores both words again.
 *
 * SIGKILL keeps program order, compilers do not: gcc -O2 removes a plain `count = 2; a; b; count = 0`. So each
 * ordering point is an atomic store between two signal fences. The store is a release, because workers read some of these
 * words live. A transaction of one word needs no redo slot: an aligned 8-byte store is whole or absent. TD_POINT is the
 * crash point: in the build for tests it keeps a copy of the arena (faults.h); elsewhere it is nothing.
 */
#ifndef TIMERD_TRANSACTION_H
#define TIMERD_TRANSACTION_H

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include "timerd_layout.h"

#ifdef TIMERD_FAULTS
void td_point(const char *base);
int td_defect(int number);
#define TD_POINT(base) td_point(base)
#define TD_DEFECT(number) td_defect(number)
#else
#define TD_POINT(base) ((void)0)
#define TD_DEFECT(number) 0
#endif
#define TD_SLOT(base) ((RedoEntry *)(void *)((base) + REDO_OFFSET))

#define TD_ORDERED_STORE(base, address, word) do { \
    __atomic_signal_fence(__ATOMIC_SEQ_CST); \
    __atomic_store_n((uint64_t *)(void *)(address), (uint64_t)(word), __ATOMIC_RELEASE); \
    __atomic_signal_fence(__ATOMIC_SEQ_CST); \
    TD_POINT(base); \
} while (0)

/* A transaction being staged. td_put writes an entry into the slot, and td_commit stores how many there are. */
typedef struct TdTransaction { char *base; uint64_t staged; } TdTransaction;

#ifdef TIMERD_FAULTS
/* Without fences a compiler may store the count before the entries. The defect MISSING_FENCE does that: it stages the
 * entries in td_aside, and moves them into the slot after the count. */
extern RedoEntry td_aside[REDO_MAX];
#define TD_STAGE(base) (TD_DEFECT(DEFECT_MISSING_FENCE) ? td_aside : TD_SLOT(base))
#define TD_FETCH(base, count) do { \
    for (uint32_t i = 0; TD_DEFECT(DEFECT_MISSING_FENCE) && i < (count); i++) \
        TD_SLOT(base)[i] = td_aside[i]; \
} while (0)
#else
#define TD_STAGE(base) TD_SLOT(base)
#define TD_FETCH(base, count) ((void)0)
#endif

/* The redo slot is full, and the words after it are the region table's. No word of the transaction is in its place
 * yet, so the next start finds the state before the transaction. */
__attribute__((noinline, cold, noreturn, unused)) static void td_full(void) {
    static const char said[] = "timerd: a transaction needs more words than the redo slot has (REDO_MAX): the daemon ends "
        "before it stores any. This is a bug in timerd: please report it with the journal.\n";
    ssize_t written = write(STDERR_FILENO, said, sizeof said - 1);
    (void)written;
    abort();
}

static inline void td_put(TdTransaction *tx, const void *address, uint64_t word) {
    uint64_t staged = tx->staged;
    char *base = tx->base;
    if (__builtin_expect(staged >= REDO_MAX, 0))
        td_full();
    RedoEntry *entry = TD_STAGE(base) + staged;
    entry->offset = (uint64_t)((const char *)address - base);
    entry->value = word;
    tx->staged = staged + 1;
}

static inline void td_store_entries(char *base, uint64_t count) {
    const RedoEntry *entry = TD_SLOT(base);
    for (uint64_t i = 0; i < count; i++)
        TD_ORDERED_STORE(base, base + entry[i].offset, entry[i].value);
}

static inline void td_commit(TdTransaction *tx) {
    ArenaHeader *header = (ArenaHeader *)(void *)tx->base;
    uint64_t count = tx->staged;
    tx->staged = 0;
    if (count > 1 && !TD_DEFECT(DEFECT_NO_REDO)) {
        TD_ORDERED_STORE(tx->base, &header->redo_count, count);
        TD_FETCH(tx->base, count);
        td_store_entries(tx->base, count);
        TD_ORDERED_STORE(tx->base, &header->redo_count, 0);
    } else {
        TD_FETCH(tx->base, count);
        td_store_entries(tx->base, count);
    }
}

#endif
