"""The work of the daemon in a turn and between turns: commands in, reports out, the loop and its sockets.

turn.py has the order of a turn; each of its steps has a module of its own. Not here: the effects of commands
(purgatory/), and the sessions of clients (clients/).
"""
