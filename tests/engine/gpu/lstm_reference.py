"""The two LSTM kernels in plain torch, on any device, in the order in which lstm.cu reads and writes."""

import torch
from torch import Tensor

from penstock.engine.kernels.lstm import Chains


def lstm_begin(operand: Tensor, states: Tensor, chains: Chains, tokens: Tensor | None, words: Tensor | None) -> None:
    """See `penstock.engine.kernels.lstm.lstm_begin`."""
    inputs = operand.shape[1] - states.shape[1]
    runs = torch.nonzero(chains.steps > 0).flatten()
    operand[runs, inputs:] = states[chains.read[runs]]
    if words is not None and tokens is not None:
        operand[runs, :inputs] = words[tokens[runs]]


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
    """See `penstock.engine.kernels.lstm.lstm_step`."""
    hidden = states.shape[1]
    inputs = operand.shape[1] - hidden
    runs = torch.nonzero(chains.steps > step).flatten()
    added = addend[addend_rows[runs]] if addend_rows is not None else addend[0]
    entered, forgot, gate, out = (gates[runs].float() + added.float()).chunk(4, 1)
    slots = chains.write[runs]
    old = cells[chains.read[runs] if step == 0 else slots]
    new = forgot.sigmoid() * old + entered.sigmoid() * gate.tanh()
    h = (out.sigmoid() * new.tanh()).to(states.dtype)
    cells[slots] = new
    operand[runs, inputs:] = h
    ends = chains.steps[runs] == step + 1
    states[slots[ends]] = h[ends]
    if above is not None:
        above[runs, :hidden] = h
    if words is not None and next_tokens is not None:
        goes_on = runs[~ends]
        operand[goes_on, :inputs] = words[next_tokens[goes_on]]
