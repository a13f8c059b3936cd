"""The process above the brokers: it keeps their ports, and starts and restarts them and the timer daemon."""
