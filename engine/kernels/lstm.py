"""Launches of LSTM steps: the pointwise part behind a product, and a whole step for few rows."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import VECTOR, kernel, pointer

_THREADS = 128
_SHORT_THREADS, _SHORT_COLUMNS, _STAGE_DEPTH = 256, 32, 128  # as in short_lstm.cu
SHORT_TILES = {32: 4, 64: 3}  # stages by rows of a tile, as its entries


class Embedding(NamedTuple):
    """The inputs of a step, looked up in a table."""

    tokens: Tensor  # int32 [R]
    words: Tensor  # [V, I]


class Chains(NamedTuple):
    """State slots of the rows of a batch, and their numbers of steps: int32 [R] each."""

    read: Tensor  # slots, of the first step
    write: Tensor  # slots, no two equal except those of rows without steps
    steps: Tensor


def lstm_begin(operand: Tensor, states: Tensor, chains: Chains, embedding: Embedding | None) -> None:
    """operand = [words[tokens] | states[read]] in the rows with steps: the operand of their first step.

    operand [R, I + H]; states [S, H]; without an embedding the input is left to the layer below, or I is 0. All halves
    of one type; I and H multiples of 8. One launch. The caller has checked slots and tokens. Raises ValueError for
    anything else.
    """
    dtype, (rows, width), hidden = operand.dtype, operand.shape, states.shape[1]
    inputs = _inputs_of(width, hidden)
    args = (
        pointer("operand", operand, dtype, (rows, width)),
        pointer("states", states, dtype, (len(states), hidden)),
        pointer("read", chains.read, torch.int32, (rows,)),
        pointer("steps", chains.steps, torch.int32, (rows,)),
        *_addresses(embedding, dtype, rows, inputs),
        np.int32(inputs),
        np.int32(hidden),
    )
    if rows:
        kernel("lstm", "lstm_begin", operand)(_grid(width, rows), (_THREADS,), args)


def lstm_step(
    gates: Tensor,
    added: Embedding,
    cells: Tensor,
    states: Tensor,
    chains: Chains,
    step: int,
    following: Tensor,
    above: Tensor | None,
    next_inputs: Embedding | None,
) -> None:
    """The rest of step `step` (0 is the first of the batch) after the product gates [R, 4H] = operand @ weight.t().

    Gates are in the order of torch: input, forget, cell, output; the rows `added` [V, 4H] of the tokens are added, or
    row 0 if the table has but one. cells float32 [S, H]: c, read from slot `read` at step 0 and else from `write`,
    written to `write`. h goes to `following` [R, I + H], the operand of the next step, to the first H columns of
    `above`, this step's operand of the next layer, if there is one, and after a row's last step to `write` of states
    [S, H]. The next inputs [V, I], if any, go to `following`. Rows without a step left write nothing. Halves of one
    type where not said otherwise; I and H multiples of 8; one launch. The caller has checked slots and tokens. Raises
    ValueError for anything else.
    """
    dtype, (rows, width), hidden = following.dtype, following.shape, states.shape[1]
    inputs = _inputs_of(width, hidden)
    args = (
        pointer("gates", gates, dtype, (rows, 4 * hidden)),
        *_state_pointers(added, cells, states, chains, dtype, rows),
        np.int32(step),
        pointer("following", following, dtype, (rows, width)),
        np.int32(inputs),
        np.int32(hidden),
        *_above(above, dtype, rows, hidden),
        *_addresses(next_inputs, dtype, rows, inputs),
    )
    if rows:
        widest = hidden if next_inputs is None else max(hidden, inputs)
        kernel("lstm", "lstm_step", following)(_grid(widest, rows), (_THREADS,), args)


def short_lstm_step(
    operand: Tensor,
    weight: Tensor,
    added: Embedding,
    cells: Tensor,
    states: Tensor,
    chains: Chains,
    step: int,
    following: Tensor,
    above: Tensor | None,
    next_inputs: Embedding | None,
) -> None:
    """A whole step in one launch: as `lstm_step`, with the product of operand [R, I + H] and `short_order` of a weight.

    operand and following are different memory.
    """
    dtype, (rows, width), hidden = operand.dtype, operand.shape, states.shape[1]
    inputs = _inputs_of(width, hidden)
    args = (
        pointer("following", following, dtype, (rows, width)),
        pointer("operand", operand, dtype, (rows, width)),
        pointer("weight", weight, dtype, (4 * hidden, width)),
        *_state_pointers(added, cells, states, chains, dtype, rows),
        np.int32(step),
        np.int32(rows),
        np.int32(inputs),
        np.int32(hidden),
        *_above(above, dtype, rows, hidden),
        *_addresses(next_inputs, dtype, rows, inputs),
    )
    if rows:
        tile = next((tile for tile in SHORT_TILES if rows <= tile), max(SHORT_TILES))
        shared_bytes = SHORT_TILES[tile] * (tile + _SHORT_COLUMNS) * _STAGE_DEPTH * dtype.itemsize
        grid = (hidden // VECTOR, -(-rows // tile))
        kernel("short_lstm", f"short_lstm_{tile}", operand)(grid, (_SHORT_THREADS,), args, shared_bytes)


def short_order(weight: Tensor) -> Tensor:
    """A copy of a weight [4H, K] for `short_lstm_step`: the gates of eight units one after another."""
    width, depth = weight.shape
    return weight.view(4, width // (4 * VECTOR), VECTOR, depth).transpose(0, 1).reshape(width, depth)


def _state_pointers(
    added: Embedding, cells: Tensor, states: Tensor, chains: Chains, dtype: torch.dtype, rows: int
) -> tuple[int, ...]:
    """Addresses of the addend, its rows (0: row 0 alone), c, h, and the three of the chains."""
    slots, hidden = cells.shape
    return (
        pointer("added", added.words, dtype, (len(added.words), 4 * hidden)),
        pointer("tokens", added.tokens, torch.int32, (rows,)) if len(added.words) > 1 else 0,
        pointer("cells", cells, torch.float32, (slots, hidden)),
        pointer("states", states, dtype, (slots, hidden)),
        pointer("read", chains.read, torch.int32, (rows,)),
        pointer("write", chains.write, torch.int32, (rows,)),
        pointer("steps", chains.steps, torch.int32, (rows,)),
    )


def _above(above: Tensor | None, dtype: torch.dtype, rows: int, hidden: int) -> tuple[int, np.int32]:
    """The address of the next layer's operand and its width."""
    if above is None:
        return 0, np.int32(0)
    if above.shape[1] < hidden:
        raise ValueError(f"above must have {hidden} columns or more, not {above.shape[1]}")
    return pointer("above", above, dtype, (rows, above.shape[1])), np.int32(above.shape[1])


def _inputs_of(width: int, hidden: int) -> int:
    inputs = width - hidden
    if inputs < 0 or inputs % VECTOR or hidden % VECTOR:
        raise ValueError(f"inputs {inputs} and hidden size {hidden}: must be multiples of {VECTOR}")
    return inputs


def _addresses(embedding: Embedding | None, dtype: torch.dtype, rows: int, inputs: int) -> tuple[int, int]:
    """Addresses of tokens and words; 0 for both without an embedding."""
    if embedding is None:
        return 0, 0
    tokens, words = embedding
    return pointer("tokens", tokens, torch.int32, (rows,)), pointer("words", words, dtype, (len(words), inputs))


def _grid(width: int, rows: int) -> tuple[int, int]:
    return -(-width // (VECTOR * _THREADS)), rows
