"""Journals for the tests on Spark."""
