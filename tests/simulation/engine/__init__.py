"""The whole system in one process on a manual clock: the real conductor, the real clients, and everything that can go
wrong between them, drawn from a seed.

    python tests/support/run.py simulation.engine --seed N --steps M --trace   repeats a failure; it prints this command
    make soak                                                                  seed after seed, until stopped

    schedule.py   events in the order of their time; callers: threads, only one of which runs at a time
    network.py    sockets in memory that drop, delay, double, reorder and break; lifelines, which show a peer's end
    kernel.py     sockets of packets in memory, which the real code of both sides uses
    unix.py       the real code on the kernel of kernel.py: a client's sockets, and both transports of the daemon
    daemon.py     a daemon; it is killed between two stores, starts again, is stopped, or loses its arena
    process.py    a process with one client; it is killed, stopped, or closes the client
    looped.py     a process with one asyncio client
    workload.py   what processes do
    drawn.py      sessions and ids, drawn from the seed
    books.py      what must hold; with issued.py (was a command applied?) and letters.py (dead letters)
    run.py        one seed
    measured.py   the lines of the conductor, the sessions and the protocol that were executed
"""
