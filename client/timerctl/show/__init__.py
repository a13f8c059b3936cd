"""How values are shown: tables for people, JSON for programs, and texts as people write quantities.

Not here: any command.
"""
