"""The daemon's host: the lock of an instance, open files, shares of processes, systemd, a timer of the kernel."""
