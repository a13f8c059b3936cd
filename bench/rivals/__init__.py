"""Rivals of timerd: other designs and other libraries, and bare loops and hops, which show the least possible cost."""
