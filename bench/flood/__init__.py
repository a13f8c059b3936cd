"""Parts of bench/overload.py: frames, those who send them, those who notice, and what is right."""
