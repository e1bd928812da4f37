"""LSTM chains by fused kernels: a step is one product for input and recurrent weights, and one pointwise launch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog
import torch
from torch import Tensor, nn

from penstock.engine.cells.contract import Cell, CellSpec
from penstock.engine.cells.models.layers import LstmStack
from penstock.engine.cells.models.lstm import ReadStep
from penstock.engine.gpu.buckets import row_bucket
from penstock.engine.gpu.cells.cell_batches import DeviceBatch
from penstock.engine.gpu.cells.device_states import DeviceStates
from penstock.engine.kernels.chain_lstm import TILES, chain_lstm, new_exchange, supports_chains
from penstock.engine.kernels.library import VECTOR
from penstock.engine.kernels.lstm import Chains, Embedding, lstm_begin, lstm_step, short_lstm_step, short_order

log = structlog.get_logger("penstock.engine")

# Batches of so few rows run each step in one launch. It reads the operand anew for every 32 columns, so the product of
# cuBLAS and a launch behind it are faster for more.
MAX_SHORT_ROWS = 32
# Batches of so few rows of one folded layer run all steps in one launch, if there are several. One alone is no faster
# so: of 64 rows it takes 11 us, and a product and a launch 9 (H200, h = 1024).
MAX_CHAIN_ROWS = TILES[-1]
_MOST_FOLDED_BYTES = 512 << 20  # of a table with a token's input product


@dataclass(frozen=True, slots=True)
class LstmLayer:
    """Weights of a layer, halves of one type on the device, gates in the order of torch."""

    weight: Tensor  # [4H, I + H]: of the input, then of h
    short_weight: Tensor  # the same in `short_order`
    added: Tensor  # [1, 4H]: the biases; or, of a folded layer, [V, 4H]: with a token's input product
    words: Tensor | None  # [V, I]: of the first layer unless it is folded


@dataclass(frozen=True, slots=True)
class LstmCell:
    """A chain of LSTM steps over token ids, of one layer or more.

    The specification has one input, no emission, and the states h (in the weights' type) and c (float32) of each layer
    in turn.
    """

    spec: CellSpec
    layers: tuple[LstmLayer, ...]
    max_short_rows: int  # of a batch whose steps are one launch each
    max_chain_rows: int  # of a batch whose steps are one launch in all, if there is but one layer and it is folded

    @property
    def vocabulary(self) -> int:
        """Tokens of the embedding table."""
        first = self.layers[0]
        return len(first.added if first.words is None else first.words)


def lstm_cell(
    spec: CellSpec,
    module: nn.LSTM,
    words: Tensor,
    *,
    folded: bool = True,
    max_short_rows: int = MAX_SHORT_ROWS,
    max_chain_rows: int = MAX_CHAIN_ROWS,
) -> LstmCell:
    """The cell of an `nn.LSTM` over an embedding table [V, I], on its device, with weights in the type of the states h.

    folded: whether the first layer's input products are computed here, for every token. It takes 8 H bytes a token, and
    halves the product of a step. ValueError for a module or specification that no kernel supports.
    """
    if module.bidirectional or module.proj_size or not module.batch_first:
        raise ValueError("an LSTM cell has one direction, no projection, and a module with batch_first=True.")
    if not _is_supported(spec, module.num_layers, module.hidden_size):
        raise ValueError(f"{spec.name} has not the states, inputs and emissions of an LSTM cell.")
    layers = [_module_layer(module, index) for index in range(module.num_layers)]
    return _cell(spec, layers, words, folded, (max_short_rows, max_chain_rows))


def fused(cell: Cell) -> Cell | LstmCell:
    """A cell by the kernels, where it reads tokens through LSTM layers that they support; else the cell itself.

    Its module lies on the device already.
    """
    step = cell.step
    if type(step) is not ReadStep or not _is_supported(cell.spec, step.stack.num_layers, step.stack.width):
        return cell
    words, layers = step.words.get_buffer("weight"), [_stack_layer(step.stack, i) for i in range(step.stack.num_layers)]
    folded = len(words) * 4 * step.stack.width * words.itemsize <= _MOST_FOLDED_BYTES
    if step.stack.width % VECTOR or (not folded and words.shape[1] % VECTOR):
        return cell
    return _cell(cell.spec, layers, words, folded, (MAX_SHORT_ROWS, MAX_CHAIN_ROWS))


class _Weights(NamedTuple):
    """Of a layer, in the order of torch."""

    of_input: Tensor  # [4H, I]
    of_state: Tensor  # [4H, H]
    bias: Tensor  # [4H]


def _is_supported(spec: CellSpec, num_layers: int, width: int) -> bool:
    states = spec.states
    dtypes = states[0].dtype if states else None, torch.float32
    is_supported = dtypes[0] in (torch.float16, torch.bfloat16) and len(states) == 2 * num_layers
    is_supported &= all((s.dtype, s.width) == (dtypes[i % 2], width) for i, s in enumerate(states))
    return is_supported and len(spec.inputs) == 1 and not (spec.emits or spec.feedback) and spec.arity == 1


def _module_layer(module: nn.LSTM, index: int) -> _Weights:
    def parameter(name: str) -> Tensor:
        found: Tensor = getattr(module, f"{name}_l{index}")
        return found.detach().float()

    of_state = parameter("weight_hh")
    bias = parameter("bias_ih") + parameter("bias_hh") if module.bias else of_state.new_zeros(len(of_state))
    return _Weights(parameter("weight_ih"), of_state, bias)


def _stack_layer(stack: LstmStack, index: int) -> _Weights:
    weight, bias = stack.get_buffer(f"weight{index}").float(), stack.get_buffer(f"bias{index}").float()
    return _Weights(weight[:, : -stack.width], weight[:, -stack.width :], bias)


@torch.no_grad()
def _cell(
    spec: CellSpec, layers: Sequence[_Weights], words: Tensor, folded: bool, most_rows: tuple[int, int]
) -> LstmCell:
    dtype = spec.states[0].dtype
    made = []
    for index, (of_input, of_state, bias) in enumerate(layers):
        if index == 0 and folded:
            weight = of_state.to(words.device, dtype).contiguous()
            added, own = torch.addmm(bias.to(words.device), words.float(), of_input.to(words.device).t()), None
        else:
            weight = torch.cat((of_input, of_state), 1).to(words.device, dtype)
            added, own = bias[None].to(words.device), words.to(dtype) if index == 0 else None
        made.append(LstmLayer(weight, short_order(weight), added.to(dtype), own))
    return LstmCell(spec, tuple(made), *most_rows)


class LstmQuantum:
    """Runs batches of an LSTM cell: a launch that gathers; then two launches a layer and step, or one for few rows.

    Several steps of few rows of a single folded layer are one launch in all.
    """

    def __init__(self, cell: LstmCell, pool: DeviceStates) -> None:
        self._cell = cell
        states = [pool.states[state] for state in cell.spec.states]
        self._states = list(zip(states[::2], states[1::2], strict=True))  # h and c of each layer
        max_rows, like = row_bucket(cell.spec.max_rows), cell.layers[0].weight
        # Of the even steps, and of the odd: while a step reads one, it writes the other.
        self._operands = [[like.new_zeros(max_rows, layer.weight.shape[1]) for layer in cell.layers] for _ in range(2)]
        self._gates = like.new_zeros(max_rows, len(like))
        is_folded = len(cell.layers) == 1 and cell.layers[0].words is None
        is_chain = is_folded and supports_chains(like.shape[1], like.device)
        self._max_chain_rows = min(cell.max_chain_rows, max_rows, TILES[-1]) if is_chain else 0
        self._exchange = new_exchange(like, self._max_chain_rows)
        if self._max_chain_rows and not self._runs_chains():
            self._max_chain_rows = 0

    @property
    def input_sizes(self) -> Mapping[str, int]:
        """See `Quantum.input_sizes`."""
        return dict.fromkeys(self._cell.spec.inputs, self._cell.vocabulary)

    def launch(self, batch: DeviceBatch) -> None:
        """Queue the steps of a batch. There are no results: no row stops early."""
        rows = len(batch.steps)
        chains = Chains(batch.read.view(rows), batch.write, batch.steps)
        (tokens,) = batch.inputs.values()
        if rows <= self._max_chain_rows and batch.quantum > 1:
            self._chain(tokens, chains)
            return
        operands = [[operand[:rows] for operand in of_turn] for of_turn in self._operands]
        for layer, operand, (states, _) in zip(self._cell.layers, operands[0], self._states, strict=True):
            lstm_begin(operand, states, chains, _embedding(tokens[0], layer.words))
        for step in range(batch.quantum):
            self._step(step, tokens, chains, operands[step % 2], operands[1 - step % 2])

    def _chain(self, tokens: Tensor, chains: Chains) -> None:
        (layer,), ((states, cells),) = self._cell.layers, self._states
        chain_lstm(layer.short_weight, Embedding(tokens, layer.added), cells, states, chains, self._exchange)

    def _runs_chains(self) -> bool:
        """Whether the driver takes the largest launch: a client of MPS may have fewer multiprocessors than are named.

        It runs no step, so it changes no state.
        """
        nothing = torch.zeros(2, self._max_chain_rows, dtype=torch.int32, device=self._gates.device)
        try:
            self._chain(nothing, Chains(nothing[0], nothing[0], nothing[0]))
        except RuntimeError as error:
            log.warning("chain_lstm_off", error=str(error).partition("\n")[0])
            return False
        return True

    def _step(
        self, step: int, tokens: Tensor, chains: Chains, operands: Sequence[Tensor], following: Sequence[Tensor]
    ) -> None:
        is_last, rows = step + 1 == len(tokens), len(tokens[step])
        above = [*operands[1:], None]
        for index, (layer, (states, cells)) in enumerate(zip(self._cell.layers, self._states, strict=True)):
            rest = (
                Embedding(tokens[step], layer.added),
                cells,
                states,
                chains,
                step,
                following[index],
                above[index],
                None if is_last else _embedding(tokens[step + 1], layer.words),
            )
            if rows <= self._cell.max_short_rows:
                short_lstm_step(operands[index], layer.short_weight, *rest)
            else:
                gates = torch.mm(operands[index], layer.weight.t(), out=self._gates[:rows])
                lstm_step(gates, *rest)


def _embedding(tokens: Tensor, words: Tensor | None) -> Embedding | None:
    return None if words is None else Embedding(tokens, words)
