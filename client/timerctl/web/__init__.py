"""timerctl web: a page about an instance for a browser of this host.

The page is served on 127.0.0.1 alone, under a token that only who sees the terminal knows. It shows what top shows, the
last hour, operations, calls and errors. Memory is read only while a page is open. The page changes something only if
the command was started with --act.

Not here: the terminal's screen (live/).
"""
