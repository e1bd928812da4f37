"""The contestants of the suite. Each module has `CONTESTANTS`: to add one is to add a file."""
