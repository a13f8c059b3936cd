"""The settings: knobs, each declared once (config.py), the sources of their values, and how they are shown.

Not here: the effect of a size on the arena (arena/plan.py).
"""
