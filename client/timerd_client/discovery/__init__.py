"""Finding the daemon of a client: its instance, whether it runs, how to start it, and sockets while it does not run.

    target.py        the arguments of `Client()`, checked
    settings.py      the settings of `client()`, from `configure()`
    identity.py      the identity of this process in HELLO
    find_daemon.py   whether the daemon runs, or has run lately
    autostart.py     starting the daemon
    late_sockets.py  the sockets of a client whose daemon does not run yet

Not here: the sockets of a daemon that runs (transport/), and the conversation (protocol/).
"""
