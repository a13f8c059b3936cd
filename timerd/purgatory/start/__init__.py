"""What a start does: check what was found, finish the transaction that was cut, make anew what is derived.

checks.py          the header and the region table, before any offset is followed; in Python
attach.pxd         where the regions lie, and room for what the core remembers beside them
validate.pxd       whether each record names only what is there
rebuild.pxd        the redo slot (redo_is_sound, finish_transaction), then everything that is derived
rebuild_order.pxd  what a second thread makes meanwhile: the operation table, the order of registration, the wheel
"""
