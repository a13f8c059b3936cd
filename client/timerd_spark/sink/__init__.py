"""format("timerd") as a sink: registrations and events for rows, each once."""
