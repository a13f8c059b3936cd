"""Subscriptions: every event on some keys, in order, for any number of subscribers of a process. Origins of events.

event.py         the items of a subscription: events and gaps
feed.py          the bounded buffer of one subscriber
watch.py         operations that observe the keys, one after another: each begins at the mark where the last one ended
hub.py           the one watch of a process for some keys, and its subscribers
subscription.py  the common part of a subscriber's handle, for threads and for asyncio
origin.py        the client and the command that have fired the event of an outcome, for traces
"""
