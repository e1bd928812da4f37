"""The few shapes for which CUDA graphs are kept, and the one that a batch belongs to.

Everything that a captured graph holds fast is in its shape: the number of rows, of sequence slots, and the longest
sequence, which is a host integer inside the attention kernels' launches.
"""

from collections.abc import Callable

from penstock.engine.gpu.choice import AttentionKernel
from penstock.engine.gpu.inputs import Shape
from penstock.engine.types import PackedBatch

GRAPH_ROWS = 8192  # beyond it the device works longer on a batch than the host needs to launch its kernels
GRAPH_SLOTS = 1024

# Rows up to a bound are rounded to a multiple of the step: finer where a row costs more of the whole.
_ROW_STEPS = ((512, 32), (1024, 64), (GRAPH_ROWS, 128))
_MIN_SLOTS, _MIN_SEQLEN = 8, 32


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
    max_seqlen = min(max(_MIN_SEQLEN, _power_of_two(batch.max_seqlen)), max(max_tokens, batch.max_seqlen))
    rows = _rounded_rows(num_tokens)
    needed = num_sequences + -(-(rows - num_tokens) // max_seqlen)
    slots, kernel = max(_MIN_SLOTS, _power_of_two(needed)), choose(max_seqlen, rows)
    if slots > GRAPH_SLOTS or kernel is AttentionKernel.ONE_BY_ONE:
        return None
    return Shape(rows, slots, max_seqlen, has_types, kernel)


def _rounded_rows(num_tokens: int) -> int:
    step = next(step for bound, step in _ROW_STEPS if num_tokens <= bound)
    return -(-num_tokens // step) * step


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
