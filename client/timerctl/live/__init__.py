"""Commands that go on until they are ended: a screen of what an instance does, outcomes and events as they come.

`top` reads shared memory alone, so it costs the daemon nothing, and works on a dead daemon. `monitor` reads the
journal. `subscribe` is a client.

Not here: commands that print once (look/).
"""
