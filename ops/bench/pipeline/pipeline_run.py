"""One run of `penstock bench pipeline`: parts in order, each kept as soon as it is done."""

import os
import shlex
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.ops.bench.common.machine import describe_machine, title
from penstock.ops.bench.common.processes import run_once
from penstock.ops.bench.common.run_clock import RunClock, TimeUp
from penstock.ops.bench.common.runs import RESULTS, begin, keep
from penstock.ops.bench.contestants.echo import WAYS, bare_echo
from penstock.ops.bench.contestants.worker_fleet import FleetSpec
from penstock.ops.bench.load.broker_folder import broker_folder
from penstock.ops.bench.load.load_bench import BROKER_CONFIG, Record
from penstock.ops.bench.load.loads import LONG, ROWS, SHORT, Load, open_load
from penstock.ops.bench.load.payloads import max_tokens
from penstock.ops.bench.pipeline.fleet_bench import Bench, FleetBench, open_fleet
from penstock.ops.bench.pipeline.pipeline_loads import (
    FLEET_PARTS,
    NULL,
    NULL_RATES_PER_S,
    NULL_WORKER,
    PARTS,
    SCALE_RATE_PER_S,
    SCALES,
    Scale,
    closed_loads,
)
from penstock.ops.bench.pipeline.pipeline_settings import PipelineSettings, numbers
from penstock.ops.bench.pipeline.run_facts import checkpoint, prepared, with_gpu
from penstock.ops.kafka import FULL_SPEED, KafkaBroker

_ALONE_S, _FLEET_S = 20.0, 15.0  # least time to begin the engine alone, and a fleet
_ALONE_MOST_S = 180.0
_MAX_CLIENTS = 32
_SCALED = ("ids 2-100", "ids 5-500", "a record each", "texts 2-100")  # loads of part `scale`
_ECHOES = {"cuda": 100_000, "cpu": 20_000}


def run_pipeline_benchmark(plan: PipelineSettings, write: Callable[[str], None]) -> int:
    """Exit code: 0; 1 if a part failed or was not begun. What was measured is kept in any case."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]  # settings of a real cluster
    clock = RunClock(plan.time_limit_s, write)
    machine = describe_machine()
    header = begin("pipeline", machine, commit=plan.commit)
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))  # stays, for the reader
    run = PipelineRun(plan, clock, folder, header)
    for part in run.parts:
        run.measure(part)
    failed = {name: part["error"] for name, part in run.found.items() if "error" in part}
    for name, why in failed.items():
        clock.say(f"FAILED {name}: {why.splitlines()[0]}")
    clock.say(f"logs in {folder}")
    return 1 if failed else 0


class PipelineRun:
    """The state of one run: what was found so far, and where it is kept."""

    def __init__(self, plan: PipelineSettings, clock: RunClock, folder: Path, header: Record) -> None:
        self._plan = plan
        self._clock = clock
        self._folder = folder
        self.found: dict[str, Record] = {}
        self._running = ""  # the part that is measured now
        found = prepared(plan.model, folder)
        self._device = "cuda" if found["gpus"] else "cpu"
        self._header = with_gpu(header, found["machine"], found["gpus"])
        self._model = checkpoint(found["model"])
        self._sizes: Scale = SCALES[NULL if self._model is None else self._device]
        cores = len(os.sched_getaffinity(0))
        num_clients = plan.clients or min(_MAX_CLIENTS, max(1, cores // 2))
        self._bench = Bench(clock, folder, int(plan.brokers), num_clients, plan.warm_s, plan.seconds)
        clock.say(f"{title(self._header['machine'])}, {cores} cores; {num_clients} clients; logs in {folder}")

    @property
    def parts(self) -> list[str]:
        """Those of the plan in their order; parts that share a fleet as one, separated by commas."""
        chosen = [part for part in PARTS if part in self._plan.parts.split(",")]
        fleet = [part for part in chosen if part in FLEET_PARTS]
        steps = [",".join(fleet) if part in fleet else part for part in chosen if part not in fleet[1:]]
        return [step for step in steps if self._applies(step)]

    def measure(self, step: str) -> None:
        """Run a step. An error is part of its record, and the other steps go on."""
        begun = self._clock.elapsed_s
        is_fleet = set(step.split(",")) <= set(FLEET_PARTS)
        self._running = "" if is_fleet else step
        try:
            getattr(self, f"_{'fleet' if is_fleet else step}")(step)
        except TimeUp as error:
            self._clock.say(str(error))
            self._note_error(step, str(error))
        except Exception as error:  # whatever it is, it belongs into the file
            traceback.print_exc()
            self._note_error(step, f"{type(error).__name__}: {error}"[:3000])
        self._clock.say(f"{step} took {self._clock.elapsed_s - begun:.1f} s")
        self._keep()

    def _alone(self, _step: str) -> None:
        """The engine alone, and SentenceTransformer.encode."""
        self._clock.require(_ALONE_S, "alone")
        requests = {SHORT: self._sizes.alone_short, LONG: self._sizes.alone_long}
        workloads = [
            (load.name, load.payload, load.low, load.high, requests[load.low, load.high])
            for load in self._closed_loads()
            if load.rows == ROWS
        ]
        spec = {
            "model": str(self._model),
            "device": "auto",
            "workloads": workloads,
            "batches": list(self._sizes.st_batches),
        }
        log = self._folder / "alone.log"
        self.found["alone"] = run_once("contestants.engine_alone", spec, log, min(_ALONE_MOST_S, self._clock.left_s))
        for kind in ("engine", "sentence_transformers"):
            rates = {name: f"{rate['requests_per_s']:,.0f}" for name, rate in self.found["alone"][kind].items()}
            self._clock.say(f"{kind} alone, req/s: {rates}")
        if "sentence_transformers_error" in self.found["alone"]:
            self._clock.say(f"FAILED {self.found['alone']['sentence_transformers_error']}")

    def _fleet(self, step: str) -> None:
        """All chosen parts that share the model's fleet."""
        self._clock.require(_FLEET_S, "the fleet")
        plan = self._plan
        model = str(self._model) if self._model is not None else NULL
        arguments = (
            shlex.split(plan.worker_args) if self._model is not None else (*NULL_WORKER, *shlex.split(plan.null_args))
        )
        spec = FleetSpec(model, arguments, plan.commands, plan.members)
        with open_fleet(self._bench, "fleet", spec, self._model) as (fleet, described):
            self.found["fleet"] = described
            closed = self._closed_loads()
            if step != "idle":
                fleet.warm_up(closed[0])
            try:
                for part in step.split(","):
                    self._running = part
                    getattr(self, f"_{part}")(fleet, closed)
                    self._keep()
            finally:
                described["batches"] = fleet.batches()

    def _closed_loads(self) -> list[Load]:
        plan, model = self._plan, self._model
        longest = max_tokens(model)
        return closed_loads(self._sizes, plan.warm_s, plan.seconds, max_tokens=longest, texts=model is not None)

    def _idle(self, fleet: FleetBench, _closed: Sequence[Load]) -> None:
        self.found["idle"] = fleet.idle()

    def _closed(self, fleet: FleetBench, closed: Sequence[Load]) -> None:
        self._offer(fleet, closed, self.found.setdefault("closed", {}))

    def _job(self, fleet: FleetBench, _closed: Sequence[Load]) -> None:
        if self._model is None:
            self.found["job"] = {"not_applicable": "the null engine takes no texts"}
            return
        self.found["job"] = fleet.job(self._model, self._sizes.job_rows)

    def _open(self, fleet: FleetBench, _closed: Sequence[Load]) -> None:
        plan = self._plan
        rates = numbers(plan.rates) or self._sizes.rates_per_s
        loads = [open_load(rate, plan.warm_s, plan.seconds) for rate in rates]
        self._offer(fleet, loads, self.found.setdefault("open", {}))

    def _overload(self, fleet: FleetBench, closed: Sequence[Load]) -> None:
        peak = self._saturation("ids 2-100", fleet, closed)
        self.found["overload"] = fleet.overload(peak, self._sizes.deadline_s)
        record = self.found["overload"]
        self._clock.say(f"in time: {record['in_time_per_s']:,.0f}/s, {record['in_time_share_of_peak']:.1%} of the peak")

    def _kill(self, fleet: FleetBench, closed: Sequence[Load]) -> None:
        if fleet.num_members < 2:
            self.found["kill"] = {"not_applicable": "the fleet has one member"}
            self._clock.say("kill: not applicable to one member")
            return
        self.found["kill"] = fleet.kill(self._saturation("shared calls", fleet, closed))

    def _drain(self, fleet: FleetBench, closed: Sequence[Load]) -> None:
        self.found["drain"] = fleet.drain(self._saturation("shared calls", fleet, closed))

    def _saturation(self, name: str, fleet: FleetBench, closed: Sequence[Load]) -> float:
        """Requests a second of a closed load; measured now if its part has not run."""
        known = self.found.get("closed", {}).get("loads", {})
        record = known.get(name) or fleet.offer(next(load for load in closed if load.name == name))
        return float(record["requests_per_s"])

    def _null(self, _step: str) -> None:
        """The null engine, in fleets of several commands."""
        plan, scale = self._plan, SCALES[NULL]
        self.found["null"] = {}
        for members in numbers(plan.null_members):
            self._clock.require(_FLEET_S, f"null engine, {members} members")
            name = f"{members} member{'s' if members > 1 else ''}"
            spec = FleetSpec(NULL, (*NULL_WORKER, *shlex.split(plan.null_args)), commands=members, members=members)
            with open_fleet(self._bench, f"null-{members}", spec, None) as (fleet, described):
                every = closed_loads(scale, 1.0, plan.seconds, max_tokens=max_tokens(None), texts=False)
                loads = [load for load in every if load.high == SHORT[1]]
                loads += [open_load(rate, 1.0, plan.seconds) for rate in NULL_RATES_PER_S]
                self.found["null"][name] = described
                self._offer(fleet, loads, described)

    def _echo(self, _step: str) -> None:
        """A bare aiokafka echo."""
        self._clock.require(_FLEET_S, "echo")
        self.found["echo"] = {}
        with KafkaBroker(temporary_in=broker_folder(), config=BROKER_CONFIG, jvm_flags=FULL_SPEED) as broker:
            for way in WAYS:
                with bare_echo(broker, way, self._folder) as measure:
                    found = self.found["echo"][way] = measure(_ECHOES[self._device])
                self._clock.say(f"bare aiokafka echo, {way}: {found['requests_per_s']:,.0f}/s")

    def _scale(self, _step: str) -> None:
        """The same command on more and more GPUs."""
        plan = self._plan
        self.found["scale"] = {}
        for count in (sizes := numbers(plan.gpus)):
            self._clock.require(_FLEET_S, f"{count} GPUs")
            arguments = (*shlex.split(plan.worker_args), "--gpus", ",".join(map(str, range(count))))
            spec = FleetSpec(str(self._model), arguments)
            with open_fleet(self._bench, f"gpus-{count}", spec, self._model) as (fleet, described):
                loads = self._closed_loads()
                record = self.found["scale"][str(count)] = described
                fleet.warm_up(loads[0])
                chosen = [load for load in loads if load.name in _SCALED]
                if count == max(sizes):
                    chosen.append(open_load(SCALE_RATE_PER_S, plan.warm_s, plan.seconds))
                self._offer(fleet, chosen, record)
                if count == max(sizes) > 1:
                    record["kill"] = fleet.kill(record["loads"]["a record each"]["requests_per_s"], whole_gpu=True)

    def _offer(self, fleet: FleetBench, loads: Sequence[Load], record: Record) -> None:
        """To the record, which is kept after each load."""
        record["loads"] = {}
        for load in loads:
            record["loads"][load.name] = fleet.offer(load)
            self._keep()

    def _applies(self, step: str) -> bool:
        """Part `alone` needs a model, and part `scale` several sizes."""
        return not (step == "alone" and self._model is None) and not (step == "scale" and not self._plan.gpus)

    def _note_error(self, step: str, why: str) -> None:
        """To the part that was interrupted, and to those that were not begun."""
        for part in step.split(","):
            if part == self._running or part not in self.found:
                self.found.setdefault(part, {})["error"] = why

    def _keep(self) -> None:
        root = self._plan.output or (RESULTS if self._plan.is_whole else None)
        if root is None:
            return
        plan = self._plan.model_dump(mode="json", exclude={"output"})
        path = keep({**self._header, "device": self._device, "plan": plan, "parts": self.found}, root)
        if root == RESULTS:
            self._clock.say(f"kept: {path}")
