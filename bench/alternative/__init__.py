"""What a user would build instead of timerd, each behind the same two calls, and run on the same workload.

book.py     the outcomes of an owner, as the load test's columns; the loops of the two processes
trial.py    one run: server, owner, firer; its Result is judged by the load test's own judge
scripts.py  a Redis sorted set with Lua, by a client written by hand;  usual.py  the same by redis-py
polls.py    long polls with BLPOP            broker.py  an asyncio daemon in 40 lines, and zmq_way.py its clients
threads.py  a thread for each wait
"""
