"""Commands that act: register, fire, cancel, calls retry, worker, ping, destroy. All but destroy are ordinary clients.

Not here: commands that only look (look/).
"""
