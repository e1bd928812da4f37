"""Several members of the consumer group on one machine: where they run, how they start, restart, roll and stop."""
