"""The hierarchical timing wheel of Varghese and Lauck, with its buckets and sweeps: when operations are due."""
