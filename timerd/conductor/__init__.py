"""What the daemon does in a turn, and between turns: commands in, reports out, the loop and its sockets.

turn.py has the order of a turn; each of its steps is a part of its own. Not here: what a command does (purgatory/),
and the sessions of clients (clients/).
"""
