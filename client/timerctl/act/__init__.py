"""Commands that change something: register, fire, cancel, destroy."""
