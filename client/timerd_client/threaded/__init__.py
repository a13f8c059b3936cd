"""The client for threads: calls block. A thread of the client receives, and sends under load.

link.py        the link, made of the parts below; `drive` does the steps of a flow
io_thread.py   the thread of the sockets: its passes, its sleep, its end
caller.py      a waiting caller receives by itself: it takes the seat (seat.py)
sender.py      which thread sends, and when; how a call waits if the window is full
waiters.py     how a thread waits
"""
