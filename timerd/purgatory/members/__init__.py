"""Clients and groups: their slots, what they hold, and what is delivered to them (answers, reports)."""
