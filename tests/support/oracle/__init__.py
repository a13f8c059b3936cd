"""Expected results: the model of the core, checks of journals and arenas."""
