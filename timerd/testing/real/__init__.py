"""A real daemon for tests, in a process that starts it again within milliseconds."""
