"""Whether clients of this process may look for the machine's daemon. In a run of pytest they may do so only in a test.

A module of an application that makes a worker at its import would otherwise run calls of the machine, because pytest
imports it. timerd's plugin for pytest sets `closed_because`, and a client reads it when it looks for its daemon. This
module imports nothing: a run of tests without timerd does not import the client.
"""

closed_because = ""  # why they may not look for it now; empty: they may
