"""From Kafka records to validated, tokenized sequences."""
