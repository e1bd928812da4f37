"""From sequences to results: single flight, batches on the engine's lanes, isolation of failures."""
