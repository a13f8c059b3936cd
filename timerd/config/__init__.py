"""What can be set: the knobs, each declared once (config.py), where their values come from, and how they are shown.

Not here: what a size means to the arena (arena/plan.py).
"""
