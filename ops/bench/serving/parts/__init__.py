"""The parts of a run: saturation, goodput, bursts and classes in process; critical points and loads through Kafka."""
