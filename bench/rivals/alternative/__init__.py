"""Ways to build a purgatory without timerd. Each way has two calls, register and fire, and runs the same workload.

book.py     the outcomes of an owner, as the load test's columns; the loops of the two processes
trial.py    one run: server, owner, firer; the load test's own judge judges its Result
scripts.py  a Redis sorted set with Lua scripts, and a client written by hand
usual.py    the scripts of scripts.py, with redis-py as the client
poller.py   the process that asks Redis for due operations
polls.py    long polls with Redis's BLPOP
broker.py   an asyncio daemon in 40 lines
zmq_way.py  the clients of broker.py
threads.py  a thread for each wait
"""
