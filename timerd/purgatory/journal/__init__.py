"""The rows that a transaction leaves in the journal. Files are written by timerd/journal/."""
