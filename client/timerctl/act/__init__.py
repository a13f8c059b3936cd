"""Commands that change something: register, fire, cancel, destroy. All but destroy are ordinary clients.

Not here: commands that only look (look/).
"""
