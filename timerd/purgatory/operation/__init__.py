"""An operation from its registration to its settlement: conditions, quotas, delivery of events, batches.

register_command.pxd  the content of a REGISTER command, read from its frame
quota.pxd             whether a registration may be applied, and if not, which limit was met
register.pxd          the work of a registration: the record, the replay of the ring, the transaction
condition.pxd         what an event means to an operation that watches its key; changes nothing
apply_event.pxd       an event reaches the operations that watch its key; a dead owner's grant is requeued
settle.pxd            an operation gets its outcome; later its record, its nodes and its blobs are freed (free_parts)
settle_batch.pxd      plain operations of one client that settle in one transaction
eviction.pxd          outcomes that are dropped when the arena lacks room
last_quarter.pxd      what outlives its client may not take the last quarter of the arena
letters.pxd           dead letters: calls that are over, and are kept
wall_time.pxd         calls that are due by the wall clock
"""
