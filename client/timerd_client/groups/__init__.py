"""Named calls: what a group of workers does once, though all of them ask for it; schedules of such calls."""
