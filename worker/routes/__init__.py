"""Routes: the second door to a worker. Records of an input topic come out on an output topic, enriched by the model."""
