"""Floods, attacks and kills: the senders of bench/suites/overload.py, and the workers of bench/suites/storm.py."""
