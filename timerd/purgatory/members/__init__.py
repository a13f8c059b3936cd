"""Clients and groups: their slots, their operations and outcomes, and the frames to them (answers, reports)."""
