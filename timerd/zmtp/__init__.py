"""ZeroMQ's wire protocol (ZMTP 3.0, rfc.zeromq.org/spec/23) on the daemon's side, over Unix sockets.

    peer         what the bytes of one peer mean; no socket
    connection   one connection: its descriptor, its peer, what waits to be sent
    shares       what each process holds of connections and of memory, and the bounds of that
    server       a listening socket with its connections

Clients use libzmq. The daemon does not, because it has to bound what a hostile peer may cost. Seen with libzmq 4.3.5: a
peer ends the process with 500 bytes; a message of endless parts grows without a bound; a subscriber fills a trie.
"""
