/* Before-images: what lines of the arena held at one turn boundary, while a thread copies the arena (arena/snapshot.py).
 *
 * For example, the copy begins at a turn's end, T0. The next turn stores into an operation's line. Before its first
 * store there, the conductor enters the line's 64 bytes into the log, and marks the line. The copier may read the line
 * before or after the store: it writes the logged bytes over what it has read. So the copy shows T0, and no turn waits.
 *
 *     conductor   image; mark of the line; count (release); then the store
 *     copier      reads lines that have no mark; then reads the count (acquire), and writes each image into the copy
 *
 * A line is logged once, so a copy costs the conductor at most one image for each line of the arena. The log has room
 * for `room` images, and the copier makes room as it goes. If no room is left, the log is *overrun*: the copy is given
 * up, and the conductor never waits.
 *
 * The callers of td_before() are twins: purgatory/twins.py makes a twin of each function of the core that stores into
 * the arena. The twin calls td_before() before each store. While no copy is being made, the plain functions run.
 */
#ifndef TIMERD_BEFORE_IMAGES_H
#define TIMERD_BEFORE_IMAGES_H

#include <stddef.h>
#include <string.h>
#include "transaction.h"

enum { IMAGE_LINE = 64, IMAGE_LOG_HEADER = 256 };

typedef struct TdImage { uint64_t line; unsigned char bytes[IMAGE_LINE]; } TdImage;

/* The head of the log's memory. After it come the marks, a bit for each line of the arena, and then the images. */
typedef struct TdImageLog {
    const char *base;
    uint64_t lines, room;
    uint64_t *marks;
    TdImage *images;
    uint64_t next; /* where the next image goes: count, modulo room */
    char apart[IMAGE_LINE];
    uint64_t count, overrun; /* stored by the conductor */
    char apart_too[IMAGE_LINE - 16];
    uint64_t drained, stopped; /* images that the copier has written into the copy; 1 = the copier has to stop */
} TdImageLog;
_Static_assert(sizeof(TdImageLog) <= IMAGE_LOG_HEADER, "the log's head has its room");

static inline uint64_t td_mark_words(uint64_t lines) { return (lines + 63) / 64; }

/* How many images fit into a log of `bytes` bytes; 0 if the marks alone do not fit. */
static inline uint64_t td_image_room(uint64_t bytes, uint64_t lines) {
    uint64_t taken = IMAGE_LOG_HEADER + td_mark_words(lines) * 8;
    return bytes > taken ? (bytes - taken) / sizeof(TdImage) : 0;
}

/* The log of the copy that is being made; NULL while there is none. In a process, one core at a time is copied. */
static TdImageLog *td_images;

/* Begin a log in memory that is all zero. */
__attribute__((unused)) static void td_begin_images(void *memory, uint64_t bytes, const char *base, uint64_t size) {
    TdImageLog *log = (TdImageLog *)memory;
    log->base = base;
    log->lines = size / IMAGE_LINE;
    log->room = td_image_room(bytes, log->lines);
    log->marks = (uint64_t *)(void *)((char *)memory + IMAGE_LOG_HEADER);
    log->images = (TdImage *)(void *)(log->marks + td_mark_words(log->lines));
    td_images = log;
}

__attribute__((unused)) static void td_end_images(const void *memory) {
    if (td_images == memory)
        td_images = NULL;
}

static inline void td_log_line(TdImageLog *log, uint64_t line) {
    uint64_t *word = log->marks + line / 64, bit = (uint64_t)1 << (line & 63);
    if (*word & bit)
        return;
    if (log->count - __atomic_load_n(&log->drained, __ATOMIC_ACQUIRE) >= log->room) {
        __atomic_store_n(&log->overrun, 1, __ATOMIC_RELEASE);
        td_images = NULL;
        return;
    }
    TdImage *image = log->images + log->next;
    image->line = line;
    memcpy(image->bytes, log->base + line * IMAGE_LINE, IMAGE_LINE);
    log->next = log->next + 1 < log->room ? log->next + 1 : 0;
    __atomic_store_n(word, *word | bit, __ATOMIC_RELAXED);
    __atomic_store_n(&log->count, log->count + 1, __ATOMIC_RELEASE);
}

__attribute__((noinline, unused)) static void td_log_lines(const void *at, uint64_t size) {
    uint64_t offset = (uint64_t)((const char *)at - td_images->base);
    if (size == 0 || offset >= td_images->lines * IMAGE_LINE)
        return; /* not the arena's: the core's own memory, or a row of the journal */
    for (uint64_t line = offset / IMAGE_LINE; line <= (offset + size - 1) / IMAGE_LINE && td_images; line++)
        td_log_line(td_images, line);
    __atomic_thread_fence(__ATOMIC_RELEASE); /* the copier sees the count before it can see the store that follows */
}

/* Call this before a store of `size` bytes at `at`. Most lines that a turn stores into have their mark already. */
__attribute__((always_inline)) static inline void td_before(const void *at, uint64_t size) {
#ifdef TIMERD_FAULTS
    static const void *held;
    static uint64_t held_size;
    if (TD_DEFECT(DEFECT_UNLOGGED_STORE) && size == 4)
        return;
    if (TD_DEFECT(DEFECT_IMAGE_AFTER_STORE)) {
        const void *late = held;
        uint64_t late_size = held_size;
        held = at;
        held_size = size;
        at = late;
        size = late_size;
    }
#endif
    const TdImageLog *log = td_images;
    if (!log)
        return;
    uint64_t offset = (uint64_t)((const char *)at - log->base), line = offset / IMAGE_LINE;
    if (line < log->lines && log->marks[line / 64] >> (line & 63) & 1 && offset % IMAGE_LINE + size <= IMAGE_LINE)
        return;
    td_log_lines(at, size);
}

/* The logged form of a store, as in TD_LOGGED(op->bucket) = 7. */
#define TD_LOGGED(lvalue) (*({ \
    __typeof__(&(lvalue)) td_at = &(lvalue); \
    td_before((const void *)td_at, sizeof *td_at); \
    td_at; \
}))

#define TD_ORDERED_STORE_logged(base, address, word) do { \
    uint64_t *td_word = (uint64_t *)(void *)(address); \
    td_before(td_word, sizeof *td_word); \
    TD_ORDERED_STORE(base, td_word, word); \
} while (0)

__attribute__((unused)) static void *memcpy_logged(void *out, const void *data, size_t size) {
    td_before(out, size);
    return memcpy(out, data, size);
}

__attribute__((unused)) static void *memset_logged(void *out, int byte, size_t size) {
    td_before(out, size);
    return memset(out, byte, size);
}

/* The redo slot is part of the arena, so a copy must show what the slot held at the turn boundary. */
static inline void td_put_logged(TdTransaction *tx, const void *address, uint64_t word) {
    if (tx->staged < REDO_MAX)
        td_before(TD_SLOT(tx->base) + tx->staged, sizeof(RedoEntry));
    td_put(tx, address, word);
}

static inline void td_commit_logged(TdTransaction *tx) {
    const RedoEntry *entry = TD_STAGE(tx->base);
    td_before(&((const ArenaHeader *)(const void *)tx->base)->redo_count, sizeof(uint64_t));
    for (uint64_t i = 0; i < tx->staged; i++)
        td_before(tx->base + entry[i].offset, sizeof(uint64_t));
    td_commit(tx);
}

#endif
