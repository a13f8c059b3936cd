"""What the operator may choose: the knobs, where their values come from, and the sizes of an arena that follow."""
