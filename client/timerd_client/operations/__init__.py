"""Kafka's delayed operations, over the public surface of a purgatory."""
