"""The arena as shared memory: planned, made, checked, opened, and its pages asked for in advance."""
