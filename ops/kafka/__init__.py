"""Local Kafka for development and tests: a real broker from Maven's jars, and librdkafka's mock cluster."""
