"""What bench/suites/longpolls.py runs: an application, the servers behind it, and a client that keeps to its plan."""
