"""Finding a daemon: which one a client is for, whether it runs, starting it, and what a client does until it is there.

    target.py        the arguments of `Client()`, checked
    settings.py      what `configure()` sets for `client()`
    identity.py      what this process says of itself in HELLO
    find_daemon.py   whether the daemon runs, or has run lately
    autostart.py     starting it
    late_sockets.py  the sockets of a client whose daemon is not there yet

Not here: the sockets of a daemon that runs (transport/), and the conversation (protocol/).
"""
