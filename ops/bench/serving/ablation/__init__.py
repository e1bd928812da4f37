"""The worth of each mechanism of the scheduler: the default without it, simulated and on recorded costs."""
