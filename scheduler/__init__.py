"""Pure, synchronous scheduling: jobs in, plans out, `now` as an argument. numpy only."""
