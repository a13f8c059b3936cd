"""The APIs of records."""
