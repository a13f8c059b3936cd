"""What clients send: frames, single commands, batches of usual ones, and prefetching what they will need.

frame.pxd          a frame: its commands are numbered, and each is applied exactly once
commands.pxd       single commands; of a REGISTER it only checks the shortest length (operation/ reads and applies it)
command_batch.pxd  neighbours of the usual kinds, applied together in one transaction
prefetch.pxd       which memory the next commands of a frame will need, asked for in stages

Not here: the acknowledgement that a frame begins with (turn/acknowledge.pxd).
"""
