"""A whole fleet through a real Kafka: `penstock worker` as a user starts it, client processes, and the engine alone."""
