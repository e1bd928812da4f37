"""Ways to batch the requests of a workload, each with the settings that a run tries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.engine.cells.contract import StepEngine
from penstock.engine.cells.steps.cpu import CpuStepEngine
from penstock.ops.bench.cellular.cellular_tables import AGENDA, DEPTH, GRAPH, NN_LSTM, OURS, PADDING
from penstock.ops.bench.cellular.load import OfferedRunner
from penstock.ops.bench.cellular.nn_lstm import NnLstmRunner
from penstock.ops.bench.cellular.policies import (
    BucketPadding,
    CellScheduling,
    GraphBatching,
    Ranks,
    depths,
    depths_results_last,
)
from penstock.ops.bench.cellular.policy_runner import PolicyRunner
from penstock.ops.bench.cellular.requests import CellWork, padded_work
from penstock.ops.bench.cellular.tape import RecordingEngine, Tape
from penstock.ops.bench.cellular.workloads import MAX_QUANTUM, Workload
from penstock.scheduler.cellular import CellRule
from penstock.worker.requests.sequence_work import SequenceWork
from penstock.worker.stepping.cell_runner import CellRunner

Settings = Mapping[str, int]
MakeRunner = Callable[[Tape], OfferedRunner]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to batch, with its settings."""

    name: str
    settings: Settings
    works: Sequence[object]
    make: MakeRunner  # a runner whose batches a tape records

    @property
    def label(self) -> str:
        """Name and settings, for a table."""
        return f"{self.name} ({', '.join(f'{name} {value}' for name, value in self.settings.items())})"


@dataclass(frozen=True, slots=True)
class Tried:
    """Settings that are tried."""

    rows: Sequence[int]  # of a task of ours, or of a batch of chains
    quanta: Sequence[int]  # of ours, at most: all with the first rows, and the first with the others; 1 of trees
    widths: Sequence[int]  # of buckets
    trees: Sequence[int]  # of a batch of trees


def contestants(workload: Workload, tried: Tried) -> list[Contestant]:
    """Ours first, then the baselines of the workload."""
    found = [ours(workload, tried.rows[0], quantum) for quantum in tried.quanta]
    found += [ours(workload, rows, tried.quanta[0]) for rows in tried.rows[1:]]
    if workload.name == "tree":
        for name, ranks in {DEPTH: depths, AGENDA: depths_results_last}.items():
            found += [_graph_batching(workload, name, trees, tried.rows[0], ranks) for trees in tried.trees]
        return found
    longest = max(tried.rows)
    for width in tried.widths:
        works = [padded_work(work, width) for work in workload.works]
        found += [_padding(workload, works, rows, width) for rows in sorted({longest, min(128, longest)})]
    found += [_graph_batching(workload, GRAPH, rows, rows, depths) for rows in tried.rows]
    return found + [_nn_lstm(workload, rows) for rows in tried.rows if workload.lstm is not None]


def max_tasks_of(engine: StepEngine) -> int:
    """Tasks of a device that a worker's runner has outstanding."""
    return 1 if isinstance(engine, CpuStepEngine) else 2


def ours(workload: Workload, rows: int, quantum: int) -> Contestant:
    """The worker's own runner."""
    specs = workload.specs(rows, quantum)
    max_tasks = max_tasks_of(workload.engine)

    def make(tape: Tape) -> OfferedRunner:
        engine = RecordingEngine(workload.engine, workload.entry, tape)
        return CellRunner(specs, [engine], max_tasks=max_tasks, clock=tape.clock)

    settings = {"rows": rows} | ({} if workload.name == "tree" else {"quantum": quantum})
    works = [SequenceWork(work.unfolded, int(work.unfolded.steps.sum()), 0) for work in workload.works]
    return Contestant(OURS, settings, works, make)


def _padding(workload: Workload, works: Sequence[CellWork], rows: int, width: int) -> Contestant:
    rules = _static_rules(workload, rows)
    settings = {"rows": rows, "width": width}
    return _by_policy(workload, PADDING, settings, works, lambda: BucketPadding(rules, rows))


def _graph_batching(workload: Workload, name: str, jobs: int, rows: int, ranks: Ranks) -> Contestant:
    rules = _static_rules(workload, rows)
    settings = {"requests": jobs}
    return _by_policy(workload, name, settings, workload.works, lambda: GraphBatching(rules, jobs, ranks))


def _static_rules(workload: Workload, rows: int) -> list[CellRule]:
    """None joins a batch, so its quanta are as long as the engine has them."""
    return workload.rules(rows, MAX_QUANTUM)


def _by_policy(
    workload: Workload, name: str, settings: Settings, works: Sequence[object], policy: Callable[[], CellScheduling]
) -> Contestant:
    def make(tape: Tape) -> OfferedRunner:
        engine = RecordingEngine(workload.engine, workload.entry, tape)
        return PolicyRunner(workload.model.specs, engine, policy(), tape.clock)

    return Contestant(name, settings, works, make)


def _nn_lstm(workload: Workload, rows: int) -> Contestant:
    model = workload.lstm
    if model is None:
        raise ValueError(f"{workload.name} has no nn.LSTM. This is a bug.")
    return Contestant(NN_LSTM, {"rows": rows}, workload.works, lambda tape: NnLstmRunner(model, rows, tape, tape.clock))
