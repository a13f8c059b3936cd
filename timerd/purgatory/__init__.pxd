"""One C unit: each .pxd file here is inline functions, which timerd/core.pyx compiles together.

So a call between rooms costs nothing, and the compiler sees a registration as one function. The price is that any edit
compiles all. A file therefore has one noun, and cimports only from rooms to the left, or from files of its own room
without a circle. tests/docs/test_cimports.py reads the levels from here:

    state < memory < journal < index < wheel < events < members < operation < commands < turn < start < face < core.pyx

    state      of each room its file state.pxd: what the core remembers for it beside the arena's records
    memory     the arena's records as bytes: slabs, lists, blobs, transactions, counters, the log of errors
    journal    the journal's buffer, and the rows that a transaction leaves in it
    index      what finds a record: keys, ids, purgatories, operations by number, watermarks
    wheel      when something is due
    events     the ring of events
    members    slots of clients, groups and who takes what of them, answers, reports
    operation  what a registration, an event and a settlement do to an operation; conditions, quotas
    commands   frames, commands, batches of them, prefetching
    turn       what a turn does besides commands: expiry, acknowledgements, sweep, retention
    start      what a start checks, attaches to, finishes (a transaction that was cut) and makes anew
    face       Python's objects become arguments in C, and results become Python's objects; no other room knows Python
"""
