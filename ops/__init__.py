"""Operating penstock: command line, local brokers, demo and benchmarks."""
