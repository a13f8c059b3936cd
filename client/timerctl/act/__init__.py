"""Commands that change something: register, fire, cancel, destroy. Each is an ordinary client.

Not here: commands that only look (look/).
"""
