"""What all brokers of a cluster know alike: its settings, its topics, and which broker leads what."""
