"""The worker's side of Kafka: fetching, back-pressure and commits."""
