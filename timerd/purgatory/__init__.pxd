"""One C unit: each .pxd file here is inline functions, which timerd/core.pyx compiles together.

So a call between rooms costs nothing, and the compiler sees a registration as one function. The price is that any edit
compiles all. A file therefore has one noun, and imports only from rooms to the left, or from files of its own room
without a circle:

    memory < index < wheel < journal < events < members < operation < commands < start < timerd/core.pyx

    memory     the arena's records as bytes: slabs, lists, blobs, transactions
    index      what finds a record: keys, ids, operations by number, watermarks
    wheel      when something is due
    journal    what is told of a change to the journal's buffer
    events     the ring of events
    members    clients and groups, their outcomes and their ends
    operation  what a registration, an event and a settlement do to an operation
    commands   frames, commands, batches of them, prefetching
    start      what a start checks and makes anew
"""
