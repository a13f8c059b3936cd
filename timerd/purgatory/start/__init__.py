"""A start: check the arena, finish a transaction that a crash has cut off, make all derived fields anew.

header.py             the header and the region table, before any offset is followed; in Python
redo.pxd              a transaction that was cut off: its words are stored again (redo_is_sound, finish_transaction)
attach.pxd            where the regions lie, and room for the state of the core beside them
validate.pxd          whether each record names only existing records
rehash.pxd            new hashes, if the hashes of the arena have another seed
rebuild.pxd           everything that is derived, made anew from the truth
rebuild_order.pxd     what a second thread makes meanwhile: operation table, order of registration, wheel
rebuild_watchers.pxd  the watchers of each key
"""
