"""Two workloads of the paper, an LSTM and a TreeLSTM, with requests of published and stated distributions.

Tokens and weights are random: they do not change what is computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from penstock.engine.cells.contract import Cell, CellSpec, Int32Array, StepEngine
from penstock.engine.cells.cpu import CpuStepEngine
from penstock.engine.cells.graph import GraphBuilder, InputValues, Unfolded
from penstock.engine.cells.models.layers import read_stack, read_table, weights_of
from penstock.engine.cells.models.lstm import read_cell
from penstock.engine.cells.models.model import CellModel, RequestFields, take_tokens
from penstock.engine.cells.models.tree import binary_tree_classifier
from penstock.engine.gpu.cells.lstm import LstmCell, fused
from penstock.engine.gpu.cells.step_engine import GpuStepEngine
from penstock.ops.bench.cellular.nn_lstm import LstmModel
from penstock.ops.bench.cellular.policies import padded
from penstock.ops.bench.common.draws import Lengths
from penstock.scheduler.cellular import CellRule
from penstock.worker.requests.sequence_work import SequenceWork

MAX_QUANTUM = 32  # of the engine; a policy may ask for less
_PREPARE_S = 12.0

Merge = tuple[int, int]

MEAN_LENGTH, MAX_LENGTH = 24.0, 330
_SIGMA = 0.65  # the longest of 100,000 is then about 330, as of WMT-15's sentences

_MEAN_WORDS, _WORDS_DEVIATION, _MAX_WORDS = 19.1, 9.3, 56


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of models and of their pools of requests."""

    hidden: int
    vocabulary: int
    requests: int  # distinct ones
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
    tokens = _tokens(wmt_like_lengths(shape.requests, seed), shape.vocabulary, seed)
    works = [work_of(model.unfold({"tokens": one})) for one in tokens]
    on_device = LstmModel(module.to(shape.device, shape.dtype), words.to(shape.device, shape.dtype))
    engine = _engine(shape, [_on_device(cell, shape)])
    return Workload("lstm", model, engine, works, on_device)


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
    words = _tokens(np.array([len(tree) + 1 for tree in trees]), shape.vocabulary, seed)
    works = [
        work_of(model.unfold({"tokens": tokens.tolist(), "merges": tree}))
        for tokens, tree in zip(words, trees, strict=True)
    ]
    engine = _engine(shape, [_on_device(cell, shape) for cell in model.cells])
    return Workload("tree", model, engine, works)


WORKLOADS: dict[str, Callable[[Shape, int], Workload]] = {
    "lstm": lstm_workload,
    "tree": tree_workload,
}


def _on_device(cell: Cell, shape: Shape) -> Cell | LstmCell:
    """The cell as a worker's engine runs it: on a GPU by fused kernels where there are some, else by torch."""
    if shape.device.type == "cpu":
        return cell
    if not isinstance(cell.step, nn.Module):
        raise TypeError("A cell with weights is a module. This is a bug.")
    cell.step.to(shape.device)
    return fused(cell)


def _engine(shape: Shape, cells: Sequence[Cell | LstmCell]) -> StepEngine:
    if shape.device.type == "cpu":
        return CpuStepEngine([cell for cell in cells if isinstance(cell, Cell)], shape.max_slots + 1)
    engine = GpuStepEngine(cells, shape.max_slots + 1, device=shape.device)
    engine.prepare(budget_s=_PREPARE_S)
    print(f"{engine.num_graphs} graphs of {', '.join(engine.cells)}", flush=True)
    return engine


def _tokens(lengths: Lengths, vocabulary: int, seed: int) -> list[Int32Array]:
    """Random tokens of each request."""
    drawn = np.random.default_rng(seed).integers(0, vocabulary, int(lengths.sum()), dtype=np.int32)
    return np.split(drawn, np.cumsum(lengths)[:-1])


def wmt_like_lengths(count: int, seed: int) -> Lengths:
    """Tokens of sentences: lognormal, sigma 0.65, mean 24, rounded up, at most 330.

    The parameters are ours: of WMT-15 the paper states the mean 24 and the maximum 330.
    """
    location = np.log(MEAN_LENGTH - 0.5) - _SIGMA**2 / 2  # rounding up adds a half on average
    drawn = np.random.default_rng(seed).lognormal(location, _SIGMA, count)
    return np.clip(np.ceil(drawn), 1, MAX_LENGTH).astype(np.int64)


def parse_trees(count: int, seed: int) -> list[list[Merge]]:
    """Merges of binary trees over words: 19 words on average, deviation 9.3, 2 to 56; a span splits anywhere.

    The numbers are those of Stanford's Sentiment Treebank, from a normal distribution that is cut off; that each span
    of words splits at a uniform place is ours. Nodes are numbered as `binary_tree_classifier` takes them.
    """
    random = np.random.default_rng(seed)
    sizes = np.clip(np.rint(random.normal(_MEAN_WORDS, _WORDS_DEVIATION, count)), 2, _MAX_WORDS).astype(int)
    return [_parse_tree(size, random) for size in sizes.tolist()]


def _parse_tree(num_words: int, random: np.random.Generator) -> list[Merge]:
    merges: list[Merge] = []

    def parse(first: int, last: int) -> int:
        """The node over the words in [first, last)."""
        if last - first == 1:
            return first
        middle = int(random.integers(first + 1, last))
        merges.append((parse(first, middle), parse(middle, last)))
        return num_words + len(merges) - 1

    parse(0, num_words)
    return merges


def work_of(unfolded: Unfolded) -> SequenceWork:
    """A request as a worker's runner takes it. Its graph is made here, before anything is timed."""
    work = SequenceWork(unfolded, int(unfolded.steps.sum()), 0)
    _ = work.cell_graph
    return work


def padded_work(work: SequenceWork, width: int) -> SequenceWork:
    """A chain over tokens, padded to a multiple of `width` by its last token."""
    steps = padded(work.graph.steps, width)
    values = work.graph.inputs["token"].values
    longer = np.pad(values, (0, int(steps[0]) - len(values)), "edge")
    inputs = {"token": InputValues(longer, np.array([0, len(longer)], np.int32))}
    return work_of(replace(work.graph, steps=steps, inputs=inputs))
