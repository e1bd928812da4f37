"""Steps of a batch of cells on a CPU, and the checks of a batch before any step."""
