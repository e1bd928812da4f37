"""Buckets of batches that share a CUDA graph.

A captured graph fixes the number of rows, the number of sequences, and the longest sequence, an argument of the
attention kernels without a plan. These make up its shape.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import takewhile

from penstock.engine.gpu.choice import AttentionKernel, longest_planned
from penstock.engine.gpu.inputs import Shape

# Larger batches are launched kernel by kernel. The device is slower than some 100 launches then, but each launch can
# yield the GIL to another thread, or keep the event loop from it.
GRAPH_ROWS = 16_384
GRAPH_SEQUENCES = 2048

# A batch's rows are rounded up to the next of these. Small numbers are closer, for a spare row costs relatively more.
_ROWS: tuple[int, ...] = (
    *range(32, 512, 32),
    *range(512, 1024, 64),
    *range(1024, 8192, 128),
    *range(8192, GRAPH_ROWS + 1, 256),
)
_MIN_SEQUENCES, _MIN_SEQLEN = 8, 32
# Tokens of texts, usual and longest, most common first. With all numbers of rows they make the shapes of 99, 98 and
# 90 % of random batches of 2-100, 5-500 and 2-30 tokens; fewer of the last for kernels without a plan.
_TYPICAL = ((64, 128), (128, 512), (32, 128), (256, 512), (16, 64))

# Rows of batches of steps: powers of two up to a tile, then its multiples. A product's tiles have no fewer rows.
_LEAST_STEP_ROWS, _STEP_TILE = 8, 64


def graph_shape(
    num_tokens: int,
    num_sequences: int,
    longest: int,
    *,
    max_tokens: int,
    choose: Callable[[int, int], AttentionKernel],
    has_types: bool,
) -> Shape | None:
    """The shape of the graph that can run a batch, or None. longest: tokens of its longest sequence.

    max_tokens: of the longest sequence that the model allows. choose: the attention kernel for the longest sequence and
    the rows. has_types: whether the model distinguishes token types. Batches without types then share the graphs of
    batches with types: reading zeros costs less than graphs of their own.
    """
    if num_tokens > GRAPH_ROWS:
        return None
    most, rows = max(max_tokens, longest), _rounded_rows(num_tokens)
    max_seqlen = min(max(_MIN_SEQLEN, _power_of_two(longest)), most)
    kernel = choose(max_seqlen, rows)
    max_seqlen = min(longest_planned(kernel) or max_seqlen, most)
    sequences = max(_MIN_SEQUENCES, _power_of_two(num_sequences + -(-(rows - num_tokens) // max_seqlen)))
    if sequences > GRAPH_SEQUENCES:
        return None
    return Shape(rows, sequences, max_seqlen, has_types, kernel)


def likely_batches(max_rows: int, max_tokens: int) -> Iterator[list[int]]:
    """Lengths of batches that together have the shapes of most batches of texts, the most common first.

    max_rows: tokens of a batch, at most. max_tokens: of a sequence. Several small batches may share a shape.
    """
    for usual, longest in _TYPICAL:
        for rows in takewhile(lambda rows: rows <= max_rows, _ROWS):
            first = min(longest, max_tokens, rows)
            each = min(usual, first)
            count, rest = divmod(rows - first, each)
            yield [first, *[each] * count, *([rest] if rest else [])]


def row_bucket(rows: int) -> int:
    """Rows of the graph for a batch of steps of `rows` rows. Spare rows run no step."""
    if rows <= _STEP_TILE:
        return max(_LEAST_STEP_ROWS, _power_of_two(rows))
    return -(-rows // _STEP_TILE) * _STEP_TILE


def row_buckets(max_rows: int) -> list[int]:
    """All buckets of batches of steps of up to `max_rows` rows."""
    return sorted({row_bucket(rows) for rows in range(1, max_rows + 1)})


def quanta(max_steps: int) -> list[int]:
    """Quanta of up to `max_steps` steps, as schedulers choose them: powers of two up to 8, then multiples of 4."""
    return [steps for steps in (1, 2, 4, *range(8, max_steps, 4)) if steps < max_steps] + [max_steps]


def _rounded_rows(num_tokens: int) -> int:
    return _ROWS[bisect_left(_ROWS, num_tokens)]


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
