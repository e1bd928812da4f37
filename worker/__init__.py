"""The consumer-group member: the only room that knows aiokafka consumers, commits and signals."""
