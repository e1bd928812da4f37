"""The contestants of the suite. Each module has `CONTESTANTS`, name -> `MakeWork`: to add one is to add a file."""
