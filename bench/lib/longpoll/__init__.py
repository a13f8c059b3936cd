"""Programs of bench/suites/longpolls.py: an application, the servers behind it, and a client that keeps to its plan."""
