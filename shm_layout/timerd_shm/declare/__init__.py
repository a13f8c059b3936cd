"""The formats of all bytes: records, frames, journal rows, counters, error codes and limits, each declared once.

Not here: code that reads the bytes (read/), judges them (check/), or is made from the declarations (generated/).
"""
