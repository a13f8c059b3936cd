"""Parts of bench/overload.py: frames, the senders of a flood, the clients that notice it, and the bounds."""
