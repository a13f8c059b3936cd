"""Commands that set up a machine: install-units, completion. They need no instance and no daemon."""
