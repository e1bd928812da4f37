"""The garbage collector as a worker has it. Benchmarks call it too, so that they measure what a worker does."""

import gc


def calm_garbage_collection() -> None:
    """Collect rarely: records in flight are many, short-lived and free of cycles, so full collections only pause.

    Called once, when the models are loaded: their objects are looked at no more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
