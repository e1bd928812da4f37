"""Benchmarks of the pipeline through a real Kafka broker, beside the engine alone, a bare echo and FastStream."""
