"""What a run does to brokers, members, topics and the cache."""
