"""The suites. Each is a program. `make bench` runs the suites that bench/lib/report.py lists."""
