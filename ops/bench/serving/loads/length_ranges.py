"""Distributions of request lengths in tokens, drawn with a seed."""

from collections.abc import Callable, Mapping

import numpy as np

from penstock.ops.bench.common.lengths import Lengths, squad, uniform

Draw = Callable[[int, int], Lengths]  # (count, seed)


def of_squad(count: int, seed: int) -> Lengths:
    """Lengths drawn from those of a slice of SQuAD 1.1, with replacement."""
    return np.random.default_rng(seed).choice(squad(0), count)


DISTRIBUTIONS: Mapping[str, Draw] = {
    "2-100": lambda count, seed: uniform(2, 100, count, seed),  # TurboTransformers, Figure 15 and Table 4
    "5-500": lambda count, seed: uniform(5, 500, count, seed),  # Figure 16 and Table 5
    "squad": of_squad,
}


def draw(distribution: str, count: int, seed: int) -> Lengths:
    """`count` lengths of a distribution, by its name.

    Raises:
        ValueError: there is none of that name.
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"Lengths must be one of {', '.join(DISTRIBUTIONS)}. Given: {distribution!r}")
    return DISTRIBUTIONS[distribution](count, seed)
