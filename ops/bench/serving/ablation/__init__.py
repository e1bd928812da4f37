"""What each mechanism of the scheduler is worth: the default without it, simulated and on recorded costs."""
