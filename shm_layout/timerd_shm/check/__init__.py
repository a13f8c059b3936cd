"""Whether an arena is sound: `timerctl check` counts everything again from the records, and compares.

Not here: reading (read/), and repairs. The daemon's own start rebuilds derived fields.
"""
