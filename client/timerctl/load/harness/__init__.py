"""The processes of a load test: registrars and firers, their observations, and the crew that starts them.

Not here: whether an outcome is right (judge.py).
"""
