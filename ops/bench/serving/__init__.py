"""Batching policies beside each other, through Kafka."""
