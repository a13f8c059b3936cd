"""Code that daemon and client share, above the declarations: sockets that never block, waits below a millisecond,
intervals, and the messages of refusals.

Not here: the meaning of frames (timerd_client/protocol/ on one side, timerd/conductor/ on the other).
"""
