"""A turn's work besides commands: its time and bound, expiry, acknowledgements, the sweep, retention.

duty_cycle.pxd   how a turn begins and ends, when the next one is due, and work that a turn before has left
state.pxd        what a turn remembers: its time, its bound, the work that was cut
expiry.pxd       the wheel moves to the present, and operations that are due settle
acknowledge.pxd  a frame is received: what it acknowledges is freed, then its commands are applied
sweep.pxd        the operations of dead clients, and the outcomes of members that take none any more
retention.pxd    outcomes in groups, and tombstones, end after a time

Not here: the order of a turn's work and its sockets (timerd/conductor/turn.py).
"""
