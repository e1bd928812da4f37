"""Layers that cells are made of, with weights from torch modules or safetensors.

A step of a layer is torch's nn.LSTM's, with its order of gates:

    i, f, g, o = W_ih x + b_ih + W_hh h + b_hh
    c' = sigmoid(f) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(c')

One product computes the gates: of [W_ih W_hh] and [x h]. The products are of the weights' type; c is float32.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.engine.cells.contract import StateSpec, Tensors
from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.model.checkpoint import Tensors as Weights


class Table(nn.Module):
    """Embeddings of tokens."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.get_buffer("weight"))

    @property
    def width(self) -> int:
        return self.get_buffer("weight").shape[1]

    def __len__(self) -> int:
        return len(self.get_buffer("weight"))


class DenseModule(nn.Module):
    """A matrix and a bias, to float32."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def __len__(self) -> int:
        return len(self.get_buffer("bias"))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.get_buffer("weight"), self.get_buffer("bias")).float()


class LstmStack(nn.Module):
    """One step of nn.LSTM's layers. The states are h0, c0, h1, c1, ... of the layers in turn."""

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """layers: of each the weight [4H, I + H], of the input and then of h, and the bias [4H]."""
        super().__init__()
        self.num_layers = len(layers)
        self.width = len(layers[0][1]) // 4
        for index, (weight, bias) in enumerate(layers):
            self.register_buffer(f"weight{index}", weight)
            self.register_buffer(f"bias{index}", bias)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        dtype = self.get_buffer("weight0").dtype
        layers = range(self.num_layers)
        pairs = [(StateSpec(f"h{i}", self.width, dtype), StateSpec(f"c{i}", self.width)) for i in layers]
        return tuple(state for pair in pairs for state in pair)

    @property
    def top(self) -> StateSpec:
        """The last layer's h."""
        return self.states[-2]

    def forward(self, x: Tensor, states: Tensors) -> dict[str, Tensor]:
        """x [R, I] and states [R, H] to new states [R, H]."""
        new: dict[str, Tensor] = {}
        for index in range(self.num_layers):
            operand = torch.cat((x, states[f"h{index}"]), 1)
            gates = F.linear(operand, self.get_buffer(f"weight{index}"), self.get_buffer(f"bias{index}"))
            i, f, g, o = gates.float().chunk(4, 1)
            c = torch.sigmoid(f) * states[f"c{index}"] + torch.sigmoid(i) * torch.tanh(g)
            x = (torch.sigmoid(o) * torch.tanh(c)).to(operand.dtype)
            new |= {f"h{index}": x, f"c{index}": c}
        return new


def tensors_of(**modules: nn.Module) -> dict[str, Tensor]:
    """Tensors of torch modules, each below its name: `tensors_of(embedding=..., lstm=..., output=...)`."""
    return {
        f"{prefix}.{name}": tensor.detach()
        for prefix, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def weights_of(**modules: nn.Module) -> Weights:
    """`tensors_of`, as a model's reader takes them."""
    return Weights(Path("torch modules"), tensors_of(**modules))


def read_table(weights: Weights, prefix: str, dtype: torch.dtype) -> Table:
    """The embeddings `weight` [V, E]."""
    return Table(weights.take(f"{prefix}weight", -1, -1).to(dtype))


def read_dense(weights: Weights, prefix: str, width: int, dtype: torch.dtype, num_rows: int = -1) -> DenseModule:
    """`weight` [rows, width] and `bias`, or none."""
    weight = weights.take(f"{prefix}weight", num_rows, width)
    name = f"{prefix}bias"
    bias = weights.take(name, len(weight)) if name in weights else torch.zeros(len(weight))
    return DenseModule(weight.to(dtype), bias.to(dtype))


def read_stack(weights: Weights, prefix: str, input_width: int, dtype: torch.dtype) -> LstmStack:
    """The layers of an nn.LSTM in one direction, without a projection."""
    for part, problem in (("weight_ih_l0_reverse", "a second direction"), ("weight_hr_l0", "a projection (proj_size)")):
        if prefix + part in weights:
            raise UnsupportedCheckpoint(f"{prefix}{part}: an LSTM with {problem} is not implemented.")
    num_layers = 1
    while f"{prefix}weight_ih_l{num_layers}" in weights:
        num_layers += 1
    names = [[f"{prefix}bias_{part}_l{layer}" for part in ("ih", "hh")] for layer in range(num_layers)]
    has_biases = any(name in weights for of_layer in names for name in of_layer)  # nn.LSTM has all of them, or none
    layers: list[tuple[Tensor, Tensor]] = []
    for layer, of_layer in enumerate(names):
        of_state = weights.take(f"{prefix}weight_hh_l{layer}", -1, -1)
        of_input = weights.take(f"{prefix}weight_ih_l{layer}", len(of_state), input_width)
        input_width = of_state.shape[1]
        biases = [weights.take(name, len(of_state)) for name in of_layer if has_biases]
        bias = sum(biases, torch.zeros(len(of_state)))
        layers.append((torch.cat((of_input, of_state), 1).to(dtype), bias.to(dtype)))
    return LstmStack(layers)
