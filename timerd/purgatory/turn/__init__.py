"""A turn's work besides frames: its time and bound, expiry, the sweep, the retention of groups.

duty_cycle.pxd       how a turn begins and ends, when the next one is due, and work left by earlier turns
state.pxd            what a turn remembers: its time, its bound, the work that its bound has cut off
expiry.pxd           the wheel moves to the present, and operations that are due settle
sweep.pxd            the operations of dead clients, and the outcomes of members that take none any more
group_retention.pxd  outcomes that a group has kept for its retention are dropped, calls become dead letters
reclaim.pxd          purgatories that hold nothing are used for new names
new_plans.pxd        calls that are due by the wall clock get another deadline when somebody has set that clock

Not here: the order of a turn's work and its sockets (timerd/conductor/turn.py).
"""
