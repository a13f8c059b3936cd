"""The state that all brokers of a cluster share: its settings, its topics, and the leader of each partition."""
