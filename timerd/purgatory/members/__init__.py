"""Who operations belong to: clients, groups, what they are sent, and what happens when they end."""
