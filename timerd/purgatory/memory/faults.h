/* Crash points and seeded defects, for tests. Without TIMERD_FAULTS none of this is compiled in.
 *
 * A crash point is an ordering point of the core (TD_ORDERED_STORE). A recording copies the arena after each point. The
 * copy is what a SIGKILL at that instruction would leave behind, because SIGKILL keeps program order.
 */
#ifndef TIMERD_FAULTS_H
#define TIMERD_FAULTS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "transaction.h"

#ifdef TIMERD_FAULTS
#define FAULTS_BUILT 1
static char *faults_copies;
static uint64_t faults_size, faults_count, faults_limit, faults_passed, faults_chance;
static int faults_defect;
static const char *faults_journal;
static uint64_t faults_journal_size;

/* The journal's buffer belongs to the arena and lies beside it. In a copy it follows the arena. */
static void faults_beside(const char *memory, uint64_t size) {
    faults_journal = memory;
    faults_journal_size = size;
}

/* A core releases its journal's buffer. A core that is garbage-collected late must not unset a newer core's buffer. */
static void faults_nothing_beside(const char *memory) {
    if (memory == faults_journal)
        faults_beside(NULL, 0);
}

/* Whether the copy of this point replaces the copy that is kept. In the end, every point is equally likely. */
static int faults_picked(void) {
    faults_chance = faults_chance * 6364136223846793005u + 1442695040888963407u;
    return (faults_chance >> 32) % ++faults_passed == 0;
}

void td_point(const char *base) {
    const ArenaHeader *header = (const ArenaHeader *)(const void *)base;
    if (faults_size && header->size + faults_journal_size != faults_size)
        return;
    if (faults_chance && faults_picked())
        faults_count = 0;
    if (faults_count >= faults_limit)
        return;
    if (!faults_copies) {
        faults_size = header->size + faults_journal_size;
        faults_copies = malloc(faults_size * faults_limit);
        if (!faults_copies)
            return;
    }
    memcpy(faults_copies + faults_size * faults_count, base, header->size);
    if (faults_journal_size)
        memcpy(faults_copies + faults_size * faults_count + header->size, faults_journal, faults_journal_size);
    faults_count += 1;
}

int td_defect(int number) { return number == faults_defect; }
RedoEntry td_aside[REDO_MAX];

static void faults_record(uint64_t limit, uint64_t chance) {
    free(faults_copies);
    faults_copies = NULL;
    faults_size = faults_count = faults_passed = 0;
    faults_limit = limit;
    faults_chance = chance;
}
static void faults_set_defect(int number) { faults_defect = number; }
#else
#define FAULTS_BUILT 0
static char *faults_copies;
static uint64_t faults_size, faults_count;
static void faults_record(uint64_t limit, uint64_t chance) { (void)limit; (void)chance; }
static void faults_set_defect(int number) { (void)number; }
static void faults_beside(const char *memory, uint64_t size) { (void)memory; (void)size; }
static void faults_nothing_beside(const char *memory) { (void)memory; }
#endif
#endif
