"""Routes beside requests, and beside what others run in their place: how fast a backlog of records is worked off."""
