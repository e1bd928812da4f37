"""Exactly-once delivery: a partition's answers and the offset behind them in one Kafka transaction."""
