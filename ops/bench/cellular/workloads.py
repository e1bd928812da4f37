"""Two workloads of the paper, an LSTM and a TreeLSTM, with their requests.

The first token of a request is its number in the pool of requests, by which a recording tells requests apart (see
`tape.py`). Others are random. Weights are random too: they do not change what is computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from penstock.engine.cells.contract import Cell, CellSpec, Int32Array, StepEngine
from penstock.engine.cells.cpu import CpuStepEngine
from penstock.engine.cells.graph import GraphBuilder
from penstock.engine.cells.models.layers import read_stack, read_table, weights_of
from penstock.engine.cells.models.lstm import read_cell
from penstock.engine.cells.models.model import CellModel, RequestFields, take_tokens
from penstock.engine.cells.models.tree import binary_tree_classifier
from penstock.engine.gpu.cells.lstm import LstmCell, lstm_cell
from penstock.engine.gpu.cells.step_engine import GpuStepEngine
from penstock.ops.bench.cellular.nn_lstm import LstmModel
from penstock.ops.bench.cellular.requests import Lengths, parse_trees, wmt_like_lengths, work_of
from penstock.scheduler.cellular import CellRule
from penstock.worker.requests.sequence_work import SequenceWork

MAX_QUANTUM = 32  # of the engine; a policy may ask for less
_PREPARE_S = 12.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of models and of their pools of requests."""

    hidden: int
    vocabulary: int
    requests: int  # distinct ones; fewer than the vocabulary
    max_rows: int
    max_slots: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class Workload:
    """A model on its engine, and a pool of requests."""

    name: str
    model: CellModel
    engine: StepEngine
    entry: str  # the cell of a request's first nodes
    works: Sequence[SequenceWork]
    lstm: LstmModel | None = None  # the model of a chain as torch has it

    def specs(self, max_rows: int, max_steps: int) -> list[CellSpec]:
        """The cells with tasks of these rows and steps at most."""
        return [
            replace(spec, max_rows=min(max_rows, spec.max_rows), max_steps=min(max_steps, spec.max_steps))
            for spec in self.model.specs
        ]

    def rules(self, max_rows: int, max_steps: int) -> list[CellRule]:
        """The same for a scheduler."""
        return [
            CellRule(spec.name, spec.max_rows, spec.max_steps, spec.priority)
            for spec in self.specs(max_rows, max_steps)
        ]


def lstm_workload(shape: Shape, seed: int) -> Workload:
    """A chain over the tokens of a sentence. Its last state is the result, which stays on the device."""
    torch.manual_seed(seed)
    module = nn.LSTM(shape.hidden, shape.hidden, batch_first=True).eval().requires_grad_(False)
    words = torch.randn(shape.vocabulary, shape.hidden)
    weights = weights_of(lstm=module, embedding=nn.Embedding(words.shape[0], words.shape[1], _weight=words))
    table = read_table(weights, "embedding.", shape.dtype)
    cell = read_cell("read", table, read_stack(weights, "lstm.", shape.hidden, shape.dtype), shape.max_rows)
    cell = replace(cell, spec=replace(cell.spec, max_steps=MAX_QUANTUM))

    def unfold(request: RequestFields, graph: GraphBuilder) -> None:
        graph.add("read", token=take_tokens(request))

    model = CellModel.of([cell], unfold)
    lengths = wmt_like_lengths(shape.requests, seed)
    tokens = _sentences(lengths, shape.vocabulary, seed)
    works = [work_of(model.unfold({"tokens": one})) for one in tokens]
    on_device = LstmModel(module.to(shape.device, shape.dtype), words.to(shape.device, shape.dtype))
    engine = _engine(shape, [_on_device(cell, shape, module, words)])
    return Workload("lstm", model, engine, "read", works, on_device)


def tree_workload(shape: Shape, seed: int) -> Workload:
    """A binary TreeLSTM with a classifier at the root."""
    torch.manual_seed(seed)
    width = shape.hidden
    cell = nn.Module()
    cell.W_iou, cell.U_iou = nn.Linear(width, 3 * width, bias=False), nn.Linear(2 * width, 3 * width, bias=False)
    cell.U_f = nn.Linear(2 * width, 2 * width)
    cell.b_iou = nn.Parameter(torch.zeros(1, 3 * width))
    weights = weights_of(embedding=nn.Embedding(shape.vocabulary, width), cell=cell, linear=nn.Linear(width, 5))
    model = binary_tree_classifier(weights, dtype=shape.dtype, max_rows=shape.max_rows)
    trees = parse_trees(shape.requests, seed)
    requests = [{"tokens": [number] * (len(tree) + 1), "merges": tree} for number, tree in enumerate(trees)]
    works = [work_of(model.unfold(request)) for request in requests]
    engine = _engine(shape, [_on_device(cell, shape) for cell in model.cells])
    return Workload("tree", model, engine, "leaf", works)


WORKLOADS: dict[str, Callable[[Shape, int], Workload]] = {
    "lstm": lstm_workload,
    "tree": tree_workload,
}


def _on_device(
    cell: Cell, shape: Shape, module: nn.LSTM | None = None, words: torch.Tensor | None = None
) -> Cell | LstmCell:
    """The cell as the engine runs it: on a GPU by fused kernels where there are some, else by torch."""
    if shape.device.type == "cpu":
        return cell
    if module is not None and words is not None:
        return lstm_cell(cell.spec, module.to(shape.device), words.to(shape.device, shape.dtype))
    if not isinstance(cell.step, nn.Module):
        raise TypeError("A cell with weights is a module. This is a bug.")
    return replace(cell, step=cell.step.to(shape.device))


def _engine(shape: Shape, cells: Sequence[Cell | LstmCell]) -> StepEngine:
    if shape.device.type == "cpu":
        return CpuStepEngine([cell for cell in cells if isinstance(cell, Cell)], shape.max_slots + 1)
    engine = GpuStepEngine(cells, shape.max_slots + 1, device=shape.device)
    engine.prepare(budget_s=_PREPARE_S)
    print(f"{engine.num_graphs} graphs of {', '.join(engine.cells)}", flush=True)
    return engine


def _sentences(lengths: Lengths, vocabulary: int, seed: int) -> list[Int32Array]:
    """Random tokens of each sentence; the first is the sentence's number."""
    random = np.random.default_rng(seed)
    sentences = [random.integers(0, vocabulary, length, dtype=np.int32) for length in lengths.tolist()]
    for number, tokens in enumerate(sentences):
        tokens[0] = number
    return sentences
