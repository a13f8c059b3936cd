"""The rows that a transaction leaves in the journal. timerd/journal/ writes them into files."""
