"""From Kafka records to valid, tokenized sequences, and the life of each record."""
