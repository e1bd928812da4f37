"""TurboTransformers' cached_cost as a cost table: the arbitrary padded costs that the proofs draw."""

from collections.abc import Mapping

from penstock.scheduler import CostTable, PaddedCost

_FAR = 1024.0  # times the last knot: where the table is continued to, in proportion


def cached_cost(seconds: Mapping[int, Mapping[int, float]]) -> CostTable:
    """The paper's dictionary [length][count] of measured seconds of a padded batch, interpolated (section 6.3).

    Every length must list the same counts. Beyond the dictionary seconds grow in proportion to count and to length.
    """
    lengths = sorted(seconds)
    counts = sorted(seconds[lengths[0]]) if lengths else []
    if not counts or any(sorted(seconds[length]) != counts for length in lengths):
        raise ValueError("cached_cost needs seconds for the same counts at every length.")
    rows = [[seconds[length][count] for length in lengths] for count in counts]
    rows = [[*row, row[-1] * _FAR] for row in rows]
    rows.append([factor * _FAR for factor in rows[-1]])
    return CostTable(
        PaddedCost(floor_s=1.0, alpha_s=0.0, beta_s=0.0, gamma_s=0.0),
        (*map(float, counts), counts[-1] * _FAR),
        (*map(float, lengths), lengths[-1] * _FAR),
        tuple(map(tuple, rows)),
    )
