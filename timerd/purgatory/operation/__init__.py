"""An operation from its registration to its settlement: conditions, events that reach it, outcomes."""
