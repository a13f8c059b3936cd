"""The process above the brokers: it keeps their ports, starts them and the timer daemon, and starts them again."""
