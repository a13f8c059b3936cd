"""The APIs of groups of consumers."""
