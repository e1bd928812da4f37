"""What all benchmarks share: machine facts, child processes, targets and reports."""
