"""The declarations of timerd (arena, wire, counters, errors) and a read-only reader, on the standard library alone."""
