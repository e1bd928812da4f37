"""Models made of cells: a user's, and the three that come with the engine."""
