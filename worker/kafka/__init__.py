"""The worker's side of Kafka: records fetched, held back when memory is full, and their offsets committed."""
