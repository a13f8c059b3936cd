"""A daemon and its clients in one process, on a clock that a test moves. The core, the conductor and the clients are
the real ones; the network between them is memory, and takes no time.

    manual      the object for a test
    driver      the clock, and the work until nothing is left to do
    threads     which threads wait, and which run a handler; the error of a handler that hangs
    daemon      the real conductor and core on an arena of this process
    network     both sides of a connection in memory
    ends        how each side notices the end of the other
    waiting     how a thread waits
    threaded    the link of a threaded client
    loop        the link of an asyncio client, and a loop on the same clock
    clock       a clock whose wall time may jump
    errors      WouldBlockError, HangsError
"""
