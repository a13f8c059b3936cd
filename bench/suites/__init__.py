"""The suites, a program each. `make bench` runs those that bench/lib/report.py lists."""
