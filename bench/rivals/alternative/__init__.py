"""Ways to build a purgatory without timerd. Each way has the same two calls, and runs the same workload.

book.py     the outcomes of an owner, as the load test's columns; the loops of the two processes
trial.py    one run: server, owner, firer; the load test's own judge judges its Result
scripts.py  a Redis sorted set with Lua, and a client written by hand;  usual.py  the same with redis-py
polls.py    long polls with BLPOP;  poller.py  the process that asks Redis for due operations
broker.py   an asyncio daemon in 40 lines;  zmq_way.py  its clients
threads.py  a thread for each wait
"""
