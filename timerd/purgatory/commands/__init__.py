"""The frames of clients: single commands, batches of usual commands, and prefetching of the memory that they need.

frame.pxd          where a frame enters the core; its commands are numbered, and each is applied exactly once
acknowledge.pxd    outcomes and answers that a client has received are freed
commands.pxd       single commands; a REGISTER is only checked for its least length (operation/ reads and applies it)
command_batch.pxd  neighbouring commands of the usual kinds, applied together in one transaction
prefetch.pxd       prefetches, in stages, the memory that the next commands of a frame need
"""
