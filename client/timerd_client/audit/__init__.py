"""The outcomes of a journal computed again, and every disagreement listed."""
