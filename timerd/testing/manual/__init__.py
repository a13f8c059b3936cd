"""A daemon and its clients in one process, on a clock that a test moves. The core, the conductor and the clients are
the real ones; the network between them is memory, and nothing of it takes time.

    manual      what a test has: the daemon, the clock, and what happens until nothing is left to do
    daemon      the real conductor and core on an arena of this process
    network     both ends of a connection in memory, and how each side notices the end of the other
    waiting     what a thread does that has to wait
    threaded    the link of a threaded client          loop    that of an asyncio client, and a loop on the same clock
"""
