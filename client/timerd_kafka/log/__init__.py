"""The log of one partition on the disk: record batches as producers sent them, one behind the other, in one file.

Nothing here knows a leader, a follower or a client.
"""
