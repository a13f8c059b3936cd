/* Arrays that take memory with use. Each begins as zeros: all of it is readable, and it is writable up to `ready`.
 *
 * The system counts memory that may be written as if it were used: under vm.overcommit_memory=2 and with RLIMIT_DATA a
 * start would fail for memory that it may never touch. Memory that is only readable does not count. */
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { char *memory; size_t size, ready; } TdGrowing;

enum { TD_GROWTH = 1 << 20 }; /* bytes; a multiple of any page */

static inline void *td_growing(TdGrowing *g, size_t size) {
    void *memory = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    g->memory = memory;
    g->size = size;
    g->ready = 0;
    return memory;
}

static inline void td_drop_growing(TdGrowing *g) {
    if (g->memory != NULL)
        munmap(g->memory, g->size);
}

/* The arena has all truth, and what is beside it is made anew at a start. So nothing is lost when the daemon ends. */
__attribute__((noinline, cold, unused)) static void td_grow(TdGrowing *g, size_t end) {
    static const char said[] = "timerd: the system gives no more memory (vm.overcommit_memory=2, or RLIMIT_DATA): the "
        "daemon ends, and nothing is lost: allow more memory, and start it again\n";
    size_t ready = (end + TD_GROWTH - 1) / TD_GROWTH * TD_GROWTH;
    if (ready > g->size)
        ready = g->size;
    if (mprotect(g->memory + g->ready, ready - g->ready, PROT_READ | PROT_WRITE) != 0) {
        ssize_t written = write(STDERR_FILENO, said, sizeof said - 1);
        (void)written;
        abort();
    }
    g->ready = ready;
}

/* Make the bytes before `end` writable. */
static inline void td_need(TdGrowing *g, size_t end) {
    if (__builtin_expect(end > g->ready, 0))
        td_grow(g, end);
}
