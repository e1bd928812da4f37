"""The few shapes for which CUDA graphs are kept, and the one that a batch belongs to.

Everything that a captured graph holds fast is in its shape: the number of rows, of sequence slots, and the longest
sequence, which is a host integer inside the launches of those attention kernels that follow no plan.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import takewhile

from penstock.engine.gpu.choice import AttentionKernel, longest_planned
from penstock.engine.gpu.inputs import Shape
from penstock.engine.types import PackedBatch

# Beyond them kernels are launched one by one, a hundred times that the interpreter may be lost to another thread: the
# device is slower than that, but the event loop waits for the interpreter too.
GRAPH_ROWS = 16_384
GRAPH_SLOTS = 2048

# Numbers of rows, to the next of which a batch is rounded up: closer where a row costs more of the whole.
_ROWS: tuple[int, ...] = (
    *range(32, 512, 32),
    *range(512, 1024, 64),
    *range(1024, 8192, 128),
    *range(8192, GRAPH_ROWS + 1, 256),
)
_MIN_SLOTS, _MIN_SEQLEN = 8, 32
# Tokens of texts, the usual and the longest, the most common first. Of random batches of 2-100, 5-500 and 2-30 tokens
# 99, 98 and 90 in a hundred are of the shapes that these make with all numbers of rows; where a launch is for the
# longest of a batch (`longest_planned`), fewer of the last.
_TYPICAL = ((64, 128), (128, 512), (32, 128), (256, 512), (16, 64))


def graph_shape(
    batch: PackedBatch, max_tokens: int, choose: Callable[[int, int], AttentionKernel], *, has_types: bool
) -> Shape | None:
    """The shape whose graph can run this batch; None for batches that no graph can run.

    max_tokens: longest sequence that the model allows. choose: the attention kernel for the longest sequence and
    the rows. has_types: whether the model tells token types apart. If so, a batch without them shares the graph of
    those with them: reading a row's type, 0, costs less than graphs of its own.
    """
    num_tokens, num_sequences = len(batch.token_ids), len(batch.cu_seqlens) - 1
    if num_tokens > GRAPH_ROWS:
        return None
    longest, rows = max(max_tokens, batch.max_seqlen), _rounded_rows(num_tokens)
    max_seqlen = min(max(_MIN_SEQLEN, _power_of_two(batch.max_seqlen)), longest)
    kernel = choose(max_seqlen, rows)
    max_seqlen = min(longest_planned(kernel) or max_seqlen, longest)
    slots = max(_MIN_SLOTS, _power_of_two(num_sequences + -(-(rows - num_tokens) // max_seqlen)))
    if slots > GRAPH_SLOTS or kernel is AttentionKernel.ONE_BY_ONE:
        return None
    return Shape(rows, slots, max_seqlen, has_types, kernel)


def likely_batches(max_rows: int, max_tokens: int) -> Iterator[list[int]]:
    """Lengths of batches of up to `max_rows` tokens in all and `max_tokens` a sequence, at least one for each shape
    that most batches of texts are of; several of few rows share one.
    """
    for usual, longest in _TYPICAL:
        for rows in takewhile(lambda rows: rows <= max_rows, _ROWS):
            first = min(longest, max_tokens, rows)
            each = min(usual, first)
            count, rest = divmod(rows - first, each)
            yield [first, *[each] * count, *([rest] if rest else [])]


def _rounded_rows(num_tokens: int) -> int:
    return _ROWS[bisect_left(_ROWS, num_tokens)]


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
