"""Launches of the pointwise part of LSTM steps."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import VECTOR, kernel, pointer, pointer_or_null

_THREADS = 128


class Chains(NamedTuple):
    """Where the rows of a batch keep their state, and how many steps they run: int32 [R] each."""

    read: Tensor  # slots, of the first step
    write: Tensor  # slots, no two equal except those of rows without steps
    steps: Tensor


def lstm_begin(operand: Tensor, states: Tensor, chains: Chains, tokens: Tensor | None, words: Tensor | None) -> None:
    """operand = [words[tokens] | states[read]] in the rows with steps: the operand of their first step.

    operand [R, I + H]; states [S, H]; words [V, I] or None: the input is left to the layer below, or I is 0; tokens
    int32 [R], with words. All halves of one type; I and H multiples of 8. One launch. The caller has checked slots and
    tokens. Raises ValueError for anything else.
    """
    dtype, (rows, width), hidden = operand.dtype, operand.shape, states.shape[1]
    inputs = _inputs_of(width, hidden)
    args = (
        pointer("operand", operand, dtype, (rows, width)),
        pointer("states", states, dtype, (len(states), hidden)),
        pointer("read", chains.read, torch.int32, (rows,)),
        pointer("steps", chains.steps, torch.int32, (rows,)),
        *_embedding(tokens, words, dtype, rows, inputs),
        np.int32(inputs),
        np.int32(hidden),
    )
    if rows:
        kernel("lstm", "lstm_begin", operand)(_grid(width, rows), (_THREADS,), args)


def lstm_step(
    gates: Tensor,
    addend: Tensor,
    addend_rows: Tensor | None,
    cells: Tensor,
    states: Tensor,
    chains: Chains,
    step: int,
    operand: Tensor,
    above: Tensor | None,
    next_tokens: Tensor | None,
    words: Tensor | None,
) -> None:
    """The rest of step `step` (0 is the first of the batch) after the product gates [R, 4H] = operand @ weight.t().

    Gates are in the order of torch: input, forget, cell, output. addend [any, 4H] is added: row addend_rows (int32
    [R]), or row 0 without. cells float32 [S, H]: c, read from slot `read` at step 0 and else from `write`, written to
    `write`. h goes to operand [R, I + H], to the first H columns of `above` (the next layer's operand) if there is one,
    and after a row's last step to `write` of states [S, H]. With words [V, I] and next_tokens (int32 [R]), the inputs
    of the next step go to the operand. Rows without a step left write nothing. Halves of one type where not said
    otherwise; I and H multiples of 8. One launch. The caller has checked slots and tokens. Raises ValueError for
    anything else.
    """
    dtype, (rows, width), hidden = operand.dtype, operand.shape, states.shape[1]
    inputs = _inputs_of(width, hidden)
    if above is not None and above.shape[1] < hidden:
        raise ValueError(f"above must have {hidden} columns or more, not {above.shape[1]}")
    next_tokens_pointer, words_pointer = _embedding(next_tokens, words, dtype, rows, inputs)
    args = (
        pointer("gates", gates, dtype, (rows, 4 * hidden)),
        pointer("addend", addend, dtype, (len(addend), 4 * hidden)),
        pointer_or_null("addend_rows", addend_rows, torch.int32, (rows,)),
        pointer("cells", cells, torch.float32, (len(cells), hidden)),
        pointer("states", states, dtype, (len(cells), hidden)),
        pointer("read", chains.read, torch.int32, (rows,)),
        pointer("write", chains.write, torch.int32, (rows,)),
        pointer("steps", chains.steps, torch.int32, (rows,)),
        np.int32(step),
        pointer("operand", operand, dtype, (rows, width)),
        np.int32(inputs),
        np.int32(hidden),
        0 if above is None else pointer("above", above, dtype, (rows, above.shape[1])),
        np.int32(0 if above is None else above.shape[1]),
        next_tokens_pointer,
        words_pointer,
    )
    if rows:
        widest = hidden if words is None else max(hidden, inputs)
        kernel("lstm", "lstm_step", operand)(_grid(widest, rows), (_THREADS,), args)


def _inputs_of(width: int, hidden: int) -> int:
    inputs = width - hidden
    if inputs < 0 or inputs % VECTOR or hidden % VECTOR:
        raise ValueError(f"inputs {inputs} and hidden size {hidden}: must be multiples of {VECTOR}")
    return inputs


def _embedding(
    tokens: Tensor | None, words: Tensor | None, dtype: torch.dtype, rows: int, inputs: int
) -> tuple[int, int]:
    """Addresses of tokens and words; 0 for both without words."""
    if words is None or tokens is None:
        return 0, 0
    table = pointer("words", words, dtype, (len(words), inputs))
    return pointer("tokens", tokens, torch.int32, (rows,)), table


def _grid(width: int, rows: int) -> tuple[int, int]:
    return -(-width // (VECTOR * _THREADS)), rows
