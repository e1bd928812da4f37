"""The requests of a run, and what each is owed."""
