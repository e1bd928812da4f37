"""Ways to batch the requests of a workload, each with the settings that a run tries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.engine.cells.cpu import CpuStepEngine
from penstock.ops.bench.cellular.cellular_tables import AGENDA, DEPTH, GRAPH, NN_LSTM, OURS, PADDING
from penstock.ops.bench.cellular.load import OfferedRunner
from penstock.ops.bench.cellular.nn_lstm import LstmModel, NnLstmRunner
from penstock.ops.bench.cellular.policies import (
    BucketPadding,
    CellScheduling,
    GraphBatching,
    depths,
    depths_results_last,
)
from penstock.ops.bench.cellular.policy_runner import PolicyRunner
from penstock.ops.bench.cellular.workloads import MAX_QUANTUM, Workload, padded_work
from penstock.scheduler.cellular import CellRule
from penstock.worker.stepping.cell_runner import CellRunner

Settings = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to batch, with its settings."""

    name: str
    settings: Settings
    works: Sequence[object]
    make: Callable[[], OfferedRunner]

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
    found = [_ours(workload, tried.rows[0], quantum) for quantum in tried.quanta]
    found += [_ours(workload, rows, tried.quanta[0]) for rows in tried.rows[1:]]
    if workload.lstm is None:
        for name, ranks in {DEPTH: depths, AGENDA: depths_results_last}.items():
            for trees in tried.trees:
                policy = partial(GraphBatching, max_jobs=trees, ranks=ranks)
                found.append(_by_policy(workload, name, {"requests": trees}, tried.rows[0], policy))
        return found
    longest = max(tried.rows)
    for width in tried.widths:
        works = [padded_work(work, width) for work in workload.works]
        for rows in sorted({longest, min(128, longest)}):
            settings = {"rows": rows, "width": width}
            found.append(_by_policy(workload, PADDING, settings, rows, partial(BucketPadding, max_jobs=rows), works))
    for rows in tried.rows:
        policy = partial(GraphBatching, max_jobs=rows)
        found.append(_by_policy(workload, GRAPH, {"requests": rows}, rows, policy))
    return found + [_nn_lstm(workload, workload.lstm, rows) for rows in tried.rows]


def _ours(workload: Workload, rows: int, quantum: int) -> Contestant:
    """The worker's own runner."""
    specs = workload.specs(rows, quantum)
    max_tasks = 1 if isinstance(workload.engine, CpuStepEngine) else 2  # outstanding, as a worker has them
    settings = {"rows": rows} if workload.lstm is None else {"rows": rows, "quantum": quantum}
    make = partial(CellRunner, specs, workload.engine, max_tasks=max_tasks)
    return Contestant(OURS, settings, workload.works, make)


def _by_policy(
    workload: Workload,
    name: str,
    settings: Settings,
    rows: int,
    policy: Callable[[Sequence[CellRule]], CellScheduling],
    works: Sequence[object] = (),
) -> Contestant:
    """None joins a batch, so its quanta are as long as the engine has them. works: other ones than the pool's."""
    rules = workload.rules(rows, MAX_QUANTUM)

    def make() -> OfferedRunner:
        return PolicyRunner(workload.model.specs, workload.engine, policy(rules))

    return Contestant(name, settings, works or workload.works, make)


def _nn_lstm(workload: Workload, model: LstmModel, rows: int) -> Contestant:
    return Contestant(NN_LSTM, {"rows": rows}, workload.works, partial(NnLstmRunner, model, rows))
