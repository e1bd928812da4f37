"""The LSTM kernels in plain torch, on any device, in the order in which they read and write."""

import torch
from torch import Tensor

from penstock.engine.kernels.chain_lstm import ChainExchange
from penstock.engine.kernels.lstm import Chains, Embedding


def lstm_begin(operand: Tensor, states: Tensor, chains: Chains, embedding: Embedding | None) -> None:
    """See `penstock.engine.kernels.lstm.lstm_begin`."""
    inputs = operand.shape[1] - states.shape[1]
    runs = torch.nonzero(chains.steps > 0).flatten()
    operand[runs, inputs:] = states[chains.read[runs]]
    if embedding is not None:
        operand[runs, :inputs] = embedding.words[embedding.tokens[runs]]


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
    """See `penstock.engine.kernels.lstm.lstm_step`."""
    hidden = states.shape[1]
    inputs = following.shape[1] - hidden
    runs = torch.nonzero(chains.steps > step).flatten()
    of_tokens = added.words[added.tokens[runs]] if len(added.words) > 1 else added.words[0]
    entered, forgot, gate, out = (gates[runs].float() + of_tokens.float()).chunk(4, 1)
    slots = chains.write[runs]
    old = cells[chains.read[runs] if step == 0 else slots]
    new = forgot.sigmoid() * old + entered.sigmoid() * gate.tanh()
    h = (out.sigmoid() * new.tanh()).to(states.dtype)
    cells[slots] = new
    following[runs, inputs:] = h
    ends = chains.steps[runs] == step + 1
    states[slots[ends]] = h[ends]
    if above is not None:
        above[runs, :hidden] = h
    if next_inputs is not None:
        goes_on = runs[~ends]
        following[goes_on, :inputs] = next_inputs.words[next_inputs.tokens[goes_on]]


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
    """See `penstock.engine.kernels.lstm.short_lstm_step`."""
    assert operand.data_ptr() != following.data_ptr()
    width, depth = weight.shape
    in_order = weight.view(width // 32, 4, 8, depth).transpose(0, 1).reshape(width, depth)
    gates = operand.float() @ in_order.float().t()
    lstm_step(gates, added, cells, states, chains, step, following, above, next_inputs)


def chain_lstm(
    weight: Tensor, added: Embedding, cells: Tensor, states: Tensor, chains: Chains, exchange: ChainExchange
) -> None:
    """See `penstock.engine.kernels.chain_lstm.chain_lstm`."""
    rows, hidden = len(chains.steps), states.shape[1]
    assert len(exchange.states) >= 2 * rows
    operand, following = states.new_zeros(rows, hidden), states.new_zeros(rows, hidden)
    lstm_begin(operand, states, chains, None)
    for step, tokens in enumerate(added.tokens):
        of_step = Embedding(tokens, added.words)
        short_lstm_step(operand, weight, of_step, cells, states, chains, step, following, None, None)
        operand, following = following, operand
