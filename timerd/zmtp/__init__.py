"""ZeroMQ's wire protocol (ZMTP 3.0, rfc.zeromq.org/spec/23) on the daemon's side, over Unix sockets.

    peer         the protocol of one peer; no socket
    connection   one connection: its descriptor, its peer, the messages that wait to be sent
    server       a listening socket with its connections

Clients use libzmq. The daemon does not, because it has to bound the cost of a hostile peer. With libzmq 4.3.5 a peer
could end the process with 500 bytes, a message of endless parts grew without a bound, and a subscriber could fill a
trie.
"""
