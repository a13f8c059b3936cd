"""What the daemon needs of its host: the lock of an instance, systemd, a timer of the kernel."""
