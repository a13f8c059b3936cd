"""Raw requests to a Kafka broker, and members of its groups."""
