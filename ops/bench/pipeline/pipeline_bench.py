"""The bench of the pipeline's parts: the options of the run, its model, the model's fleet, and the loads by device."""

import dataclasses
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.part_bench import PartBench
from penstock.ops.bench.contestants.worker_fleet import READY_TIMEOUT_S, FleetSpec, WorkerFleet
from penstock.ops.bench.load.backlog import create_topics
from penstock.ops.bench.load.load_bench import Record
from penstock.ops.bench.load.loads import LONG, ROWS, SHORT, Load, special_tokens
from penstock.ops.bench.load.payloads import max_tokens
from penstock.ops.bench.pipeline.fleet_bench import Around, FleetBench, broker_folder, open_broker, open_fleet
from penstock.ops.bench.pipeline.run_facts import checkpoint, prepared
from penstock.ops.kafka import KafkaBroker
from penstock.worker.model_settings import NULL_MODEL

_MAX_CLIENTS = 32
# Large batches and one lane, because there is no computation. As on a GPU, no batch waits to become fuller.
NULL_WORKER: Sequence[str] = (
    *("--lanes", "1", "--max-wait-ms", "0"),
    *("--max-batch-tokens", "65536", "--max-batch-sequences", "1024"),
)
SCALE_RATE_PER_S = 60_000.0  # open loop of the largest fleet of part `scale`


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of the loads for one kind of device: enough in flight to keep it busy, and rates within its reach."""

    short_lists: int  # callers of a client process, with lists of SHORT sequences
    long_lists: int
    singles: int  # callers with one sequence
    rates_per_s: Sequence[float]
    deadline_s: float  # of requests under overload
    alone_short: int  # requests of a pass through the engine alone
    alone_long: int
    st_batches: Sequence[int]  # batch sizes that SentenceTransformer.encode tries
    job_rows: int  # of a bulk job


SCALES: Mapping[str, Scale] = {
    "cuda": Scale(24, 12, 1024, (1000, 8000, 10_000, 25_000), 0.2, 16_384, 4096, (64, 128, 256, 512), 250_000),
    "cpu": Scale(6, 4, 256, (50, 200), 2.0, 256, 64, (32, 64), 3000),
    NULL_MODEL: Scale(24, 24, 1024, (1000,), 0.2, 0, 0, (), 0),
}


class PipelineBench(PartBench):
    """The fleet is opened for the first part that asks for it, and closed before another one is."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))  # stays, for the reader
        print(f"logs in {self.folder}", flush=True)
        found = prepared(options.get("model"), self.folder)
        self._machine: Record = found["machine"]
        self.device = "cuda" if found["gpus"] else "cpu"
        self.model = checkpoint(found["model"])
        self.sizes: Scale = SCALES[NULL_MODEL if self.model is None else self.device]
        self.warm_s, self.seconds = float(options["warm_s"]), float(options["seconds"])
        self.worker_args: Sequence[str] = shlex.split(options["worker_args"])
        self.saturated: dict[str, float] = {}  # requests a second of closed loops so far, by their names
        clients = options["clients"] or min(_MAX_CLIENTS, max(1, len(os.sched_getaffinity(0)) // 2))
        self._around = Around(self.folder, options["brokers"], clients, self.warm_s, self.seconds)
        self._stack = ExitStack()
        self._fleet: tuple[FleetBench, Record] | None = None

    def machine(self) -> Record:
        """See `PartBench.machine`."""
        return self._machine

    def close(self) -> None:
        """See `PartBench.close`. The fleet alone: a part may open another one afterwards."""
        self._fleet = None
        self._stack.close()

    @property
    def fleet(self) -> FleetBench:
        """That of the model, warm."""
        return self._opened()[0]

    def described_fleet(self) -> Record:
        """How the model's fleet came up, and the batches of all its loads so far."""
        fleet, described = self._opened()
        return {**described, "batches": fleet.batches()}

    def other_fleet(
        self, name: str, spec: FleetSpec, model: Path | None
    ) -> AbstractContextManager[tuple[FleetBench, Record]]:
        """A fleet of a part's own, once the model's is closed."""
        self.close()
        return open_fleet(self._around, name, spec, model)

    @contextmanager
    def route_fleet(
        self, spec: FleetSpec, topics: Sequence[str], partitions: int
    ) -> Iterator[tuple[KafkaBroker, WorkerFleet]]:
        """Workers of a route between two new topics, once the model's fleet is closed."""
        self.close()
        with open_broker(broker_folder()) as broker:
            create_topics(broker, topics, partitions)
            with WorkerFleet(spec, "route", broker.bootstrap_servers, self.folder / "route") as workers:
                workers.wait_until_ready(READY_TIMEOUT_S)
                yield broker, workers

    def closed_loads(self) -> list[Load]:
        """Those that the model takes."""
        longest, has_texts = max_tokens(self.model), self.model is not None
        return closed_loads(self.sizes, self.warm_s, self.seconds, max_tokens=longest, texts=has_texts)

    def saturation(self, name: str) -> float:
        """Requests a second of a closed loop; measured now if part `closed` has not run."""
        if name not in self.saturated:
            load = next(load for load in self.closed_loads() if load.name == name)
            self.saturated[name] = float(self.fleet.offer(load)["requests_per_s"])
        return self.saturated[name]

    def _opened(self) -> tuple[FleetBench, Record]:
        if self._fleet is None:
            arguments = self.worker_args if self.model is not None else (*NULL_WORKER, *self.worker_args)
            model = NULL_MODEL if self.model is None else str(self.model)
            spec = FleetSpec(model, arguments, self.options["commands"], self.options["members"])
            self._fleet = self._stack.enter_context(open_fleet(self._around, "fleet", spec, self.model))
            self._fleet[0].warm_up(self.closed_loads()[0])
        return self._fleet


def closed_loads(scale: Scale, warm_s: float, seconds: float, *, max_tokens: int, texts: bool) -> list[Load]:
    """Loads that saturate a fleet, in the order of the table; none with sequences that the model does not take.

    `texts`: the model has a tokenizer.
    """
    (short, short_end), (long, long_end) = SHORT, LONG
    loads = [
        Load("ids 2-100", "ids", short, short_end, ROWS, scale.short_lists),
        Load("ids 5-500", "ids", long, long_end, ROWS, scale.long_lists),
        Load("shared calls", "ids", short, short_end, 1, scale.singles),
        Load("a record each", "ids", short, short_end, 1, scale.singles, batch_calls=False),
    ]
    if texts:
        loads += [
            Load("texts 2-100", "texts", short, short_end, ROWS, scale.short_lists),
            Load("texts 5-500", "texts", long, long_end, ROWS, scale.long_lists),
        ]
    taken = [load for load in loads if load.high + special_tokens(load.payload) <= max_tokens]
    return [dataclasses.replace(load, warm_s=warm_s, seconds=seconds) for load in taken]
