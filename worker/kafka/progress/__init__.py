"""How far each partition is: what is finished, how commits say it, and how the next owner reads it."""
