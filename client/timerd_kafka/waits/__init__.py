"""The waits of requests. A request waits only for an operation of timerd."""
