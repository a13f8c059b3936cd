"""Subscriptions: every event on some keys, in order, for any number of subscribers of a process.

event.py         what a subscriber gets: an event, or a gap
feed.py          the bounded buffer of one subscriber
watch.py         operations that observe the keys, one after the other, each from the mark of the one before
hub.py           the one watch of a process for some keys, and who gets its events
subscription.py  the handle, as both faces have it
"""
