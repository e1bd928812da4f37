"""Batching policies beside each other, through Kafka; and what chose each constant of the scheduler."""
