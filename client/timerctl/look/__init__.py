"""Reading the arena for a person: statistics, clients, operations, keys, errors, and whether the arena is sound."""
