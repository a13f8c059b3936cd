"""Commands that change something: register, fire, cancel, destroy. Each is a client like any other.

Not here: what only looks (look/).
"""
