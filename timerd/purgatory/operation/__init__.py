"""An operation from its registration to its settlement: conditions, quotas, delivery of events, batches."""
