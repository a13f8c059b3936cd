"""Clients and groups: their slots, what they hold, and what they are sent (answers, reports)."""
