"""When something is due: the hierarchical timing wheel of Varghese and Lauck, with its buckets and sweeps."""
