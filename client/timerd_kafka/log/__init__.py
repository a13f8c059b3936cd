"""The log of one partition on the disk: record batches, one after the other, in one file.

The leader sets a few fields of their headers; the records stay as producers sent them. This folder imports nothing of
leaders, followers or clients.
"""
