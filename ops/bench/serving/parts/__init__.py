"""The parts of a run: saturation, the paper's comparison, goodput, bursts, classes, and the same through Kafka."""
