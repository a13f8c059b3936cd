"""The process that starts and restarts the brokers and the timer daemon, and keeps the brokers' ports."""
