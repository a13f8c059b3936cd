"""Faults that a test sets: errors on demand, late answers, and answers that are cut."""
