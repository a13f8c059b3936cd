"""One C unit: the .pxd files here hold inline functions, which timerd/core.pyx compiles together.

So a call between rooms costs nothing, and the compiler sees a registration as one function. The price: any edit
compiles everything again, and the language does not keep the rooms apart. So each file has one noun. It cimports only
from rooms to the left of its own, or from files of its own room, without a circle. tests/docs/test_cimports.py reads
the levels from here:

    state < memory < journal < index < wheel < events < members < operation < commands < turn < start < binding < core.pyx

    state      the file state.pxd of each room: what the core remembers for the room beside the arena's records
    memory     the arena's records as bytes: slabs, lists, blobs, transactions, counters, the log of errors; before-images
    journal    the journal's buffer, and the rows that a transaction leaves in it
    index      finding a record: keys, ids, purgatories, operations by number, watermarks
    wheel      which operations are due, and when
    events     the ring of events
    members    slots of clients, groups and their members, answers, reports
    operation  an operation from its registration to its settlement; conditions, quotas
    commands   frames, acknowledgements, commands, batches of them, prefetching
    turn       a turn's work besides frames: expiry, sweep, the retention of groups
    start      checking an arena, finishing a transaction that a crash has cut off, making derived fields anew
    binding    from Python's objects to arguments in C, and back to Python's objects; no other .pxd file knows Python

Between Cython and C, twins.py gives each function that stores into the arena a twin, which logs before it stores. The
twins run while the arena is copied.
"""
