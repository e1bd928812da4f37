"""Launches of LSTM chains: all steps of a batch of few rows in one kernel, whose blocks exchange h after each."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import VECTOR, kernel, multiprocessors, pointer
from penstock.engine.kernels.lstm import Chains, Embedding

HIDDEN_SIZES = (256, 512, 1024)  # as the entries of chain_lstm.cu, and so are the tiles
TILES = (16, 32, 64)
_SLICES, _PITCH, _THREADS = 8, 40, 256


class ChainExchange(NamedTuple):
    """Memory in which the blocks of a launch exchange h. Launches that share it follow one another on one stream."""

    states: Tensor  # [2 R, H], of the weights' type
    arrivals: Tensor  # int64 [8], zero before the first launch


def supports_chains(hidden: int, device: torch.device) -> bool:
    """Whether the device holds all blocks of a launch at the same time: each has a multiprocessor."""
    return hidden in HIDDEN_SIZES and device.type == "cuda" and hidden // VECTOR <= multiprocessors(device.index or 0)


def new_exchange(weight: Tensor, max_rows: int) -> ChainExchange:
    """Memory for launches of up to `max_rows` rows. weight: [4H, H]."""
    states = weight.new_zeros(2 * max_rows, weight.shape[1])
    return ChainExchange(states, torch.zeros(_SLICES, dtype=torch.int64, device=weight.device))


def chain_lstm(
    weight: Tensor, added: Embedding, cells: Tensor, states: Tensor, chains: Chains, exchange: ChainExchange
) -> None:
    """All steps of a batch: h and c go from slots `read` to slots `write`.

    weight [4H, H] in `short_order`; `added` has tokens [Q, R], undefined beyond a row's steps, and the input products
    [V, 4H] of one layer, gates in the order of torch; cells float32 [S, H]; states [S, H]. Rows without steps write
    nothing. Halves of one type where not said otherwise; one launch. H is one that `supports_chains`, R at most the
    last of TILES, Q at least 2. The caller has checked slots and tokens. Raises ValueError for anything else,
    RuntimeError if the device does not hold all blocks at the same time.
    """
    dtype, (slots, hidden), (quantum, rows) = states.dtype, states.shape, added.tokens.shape
    tile = next((tile for tile in TILES if rows <= tile), 0)
    if not tile or hidden not in HIDDEN_SIZES or quantum < 2:
        must = f"must be at most {TILES[-1]}, of one of {HIDDEN_SIZES}, and two steps or more"
        raise ValueError(f"{rows} rows of {hidden} units, {quantum} steps: {must}")
    args = (
        pointer("weight", weight, dtype, (4 * hidden, hidden)),
        pointer("added", added.words, dtype, (len(added.words), 4 * hidden)),
        pointer("tokens", added.tokens, torch.int32, (quantum, rows)),
        pointer("cells", cells, torch.float32, (slots, hidden)),
        pointer("states", states, dtype, (slots, hidden)),
        pointer("read", chains.read, torch.int32, (rows,)),
        pointer("write", chains.write, torch.int32, (rows,)),
        pointer("steps", chains.steps, torch.int32, (rows,)),
        np.int32(quantum),
        np.int32(rows),
        pointer("exchange", exchange.states[: 2 * rows], dtype, (2 * rows, hidden)),
        pointer("arrivals", exchange.arrivals, torch.int64, (_SLICES,)),
    )
    if rows:
        entry = kernel("chain_lstm", f"chain_lstm_{tile}_{hidden}", states)
        entry((hidden // VECTOR,), (_THREADS,), args, 4 * _SLICES * tile * _PITCH, are_together=True)
