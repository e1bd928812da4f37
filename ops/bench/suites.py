"""All suites, each a declaration. `penstock bench NAME` runs one of them."""

from penstock.ops.bench.cellular.cellular_tables import PARTS as WORKLOADS
from penstock.ops.bench.cellular.generation_tables import SEARCHES
from penstock.ops.bench.common.suite import DEVICE, SCALE, SEED, BenchSuite, Option, Part, numbers
from penstock.ops.bench.gpu.gpu_tables import SHAPES
from penstock.ops.bench.pipeline.pipeline_tables import MODELS as MODEL_PARTS
from penstock.ops.bench.pipeline.pipeline_tables import PARTS as PIPELINE_PARTS
from penstock.ops.bench.pipeline.pipeline_tables import ROUTE, ROUTE_SHAPE

_BENCH = "penstock.ops.bench"
_SETUP = f"{_BENCH}.common.setup:Setup"
_CPU_LIMIT_S = 3600.0  # also on a machine that others use: so are the seconds of parts below
CPU = BenchSuite(
    name="cpu",
    about="Workers through Kafka on two cores, beside the engine alone, a bare echo and FastStream.",
    bench=_SETUP,
    tables=f"{_BENCH}.cpu.cpu_tables:TABLES",
    parts={
        "engine": Part(f"{_BENCH}.cpu.part_engine:run", 150, ("float32",)),
        "engine-bf16": Part(f"{_BENCH}.cpu.part_engine:run", 150, ("bfloat16",)),
        "int8": Part(f"{_BENCH}.cpu.part_int8:run", 600),
        "end-to-end": Part(f"{_BENCH}.cpu.part_kafka:run_end_to_end", 300),
        "latency": Part(f"{_BENCH}.cpu.part_kafka:run_latency", 300),
        "labels-minilm": Part(f"{_BENCH}.cpu.part_labels:run", 80, ("MiniLM-L6",)),
        "labels-deberta": Part(f"{_BENCH}.cpu.part_labels:run", 150, ("DeBERTa-v3-base",)),
        "null": Part(f"{_BENCH}.cpu.part_null:run_null", 150),
        "memory": Part(f"{_BENCH}.cpu.part_null:run_memory", 100),
    },
    time_limit_s=_CPU_LIMIT_S,
    options=[SCALE],
    cores=2,
)
DELIVERY = BenchSuite(
    name="delivery",
    about="Poison, crashes, rolling restarts and the cost of exactly_once, beside FastStream and an earlier commit.",
    bench=_SETUP,
    tables=f"{_BENCH}.delivery.delivery_tables:TABLES",
    parts={
        "poison": Part(f"{_BENCH}.delivery.part_poison:run_poison", 200),
        "crash": Part(f"{_BENCH}.delivery.part_crash:run", 300, ("ack",)),
        "crash-default": Part(f"{_BENCH}.delivery.part_crash:run", 200, ("ack_first",)),
        "roll": Part(f"{_BENCH}.delivery.part_roll:run_roll", 240),
        "modes": Part(f"{_BENCH}.delivery.part_turns:run_modes", 240),
        "modes-minilm": Part(f"{_BENCH}.delivery.part_turns:run_modes_minilm", 240),
        "before": Part(f"{_BENCH}.delivery.part_turns:run_before", 240, needs="before"),
    },
    time_limit_s=_CPU_LIMIT_S,
    options=[SCALE, Option("before", None, "an earlier commit, for the part of this name")],
    cores=2,
)
ROUTES = BenchSuite(
    name="routes",
    about="Routes beside requests, FastStream and calls of a server for each record; and routes without a model.",
    bench=_SETUP,
    tables=f"{_BENCH}.routes.route_tables:TABLES",
    parts={
        "texts": Part(f"{_BENCH}.routes.part_routes:run_texts", 150),
        "null": Part(f"{_BENCH}.routes.part_routes:run_null", 90),
        "http": Part(f"{_BENCH}.routes.part_routes:run_http", 90, needs="server"),
    },
    time_limit_s=_CPU_LIMIT_S,
    options=[SCALE, Option("server", None, "command that serves {model} on {port} at /v1/embeddings, for part http")],
    cores=2,
)
SERVING = BenchSuite(
    name="serving-kafka",
    about="Batching policies through Kafka: the share of requests that each answers in time.",
    bench=_SETUP,
    tables=f"{_BENCH}.serving.policies:TABLES",
    parts={"loads": Part(f"{_BENCH}.serving.part_loads:run", 600)},
    time_limit_s=_CPU_LIMIT_S,
    options=[SCALE],
    cores=2,
)
GPU = BenchSuite(
    name="gpu",
    about="The engine on a GPU beside its alternatives and its floor.",
    bench=f"{_BENCH}.gpu.bench:Bench",
    tables=f"{_BENCH}.gpu.gpu_tables:TABLES",
    parts={
        "kernels": Part(f"{_BENCH}.gpu.part_kernels:run", 5),
        "single": Part(f"{_BENCH}.gpu.part_single:run", 32),
        "rows": Part(f"{_BENCH}.gpu.part_rows:run", 15),
        "labels": Part(f"{_BENCH}.gpu.part_labels:run", 30, ("DeBERTa-v3-base",)),
        "cosines": Part(f"{_BENCH}.gpu.part_cosines:run", 60),
        **{f"shape-{name}": Part(f"{_BENCH}.gpu.part_shapes:run", 25, (name,)) for name in SHAPES},
    },
    time_limit_s=480.0,
    options=[DEVICE, SEED],
)
CELLULAR = BenchSuite(
    name="cellular",
    about="Cellular batching beside the policies before it: an LSTM and a TreeLSTM, as in BatchMaker's paper.",
    bench=f"{_BENCH}.cellular.evaluation:CellularBench",
    tables=f"{_BENCH}.cellular.cellular_tables:TABLES",
    parts={name: Part(f"{_BENCH}.cellular.evaluation:run", 40, (name,)) for name in WORKLOADS},
    time_limit_s=240.0,
    options=[DEVICE, SEED],
)
_BUDGETS_S = {"step": 14, "continuous": 8, "static": 8, "transformers": 14, "arrivals": 12}
GENERATION = BenchSuite(
    name="generation",
    about="Encoder-decoder generation on a GPU beside transformers.",
    bench=f"{_BENCH}.cellular.generation_bench:GenerationBench",
    tables=f"{_BENCH}.cellular.generation_tables:TABLES",
    parts={
        f"{part}_{search}": Part(f"{_BENCH}.cellular.generation_parts:{part}", budget_s, (search,))
        for search in SEARCHES
        for part, budget_s in _BUDGETS_S.items()
    },
    time_limit_s=150.0,
    options=[DEVICE, SEED],
)
_WORKER_ARGS = Option("worker_args", "", "further arguments of the model's `penstock worker`, in one string")
_AROUND = (
    Option("brokers", 1, "of each fleet; three share the partitions", int, (1, 3)),
    Option("clients", None, "client processes; default: one for two cores, at most 32", int),
    Option("warm_s", 2.0, "seconds of each load that are not measured", float),
    Option("seconds", 4.0, "measured seconds of each load", float),
)
PIPELINE = BenchSuite(
    name="pipeline",
    about="Workers behind a real Kafka as a user starts them, beside the engine alone.",
    bench=f"{_BENCH}.pipeline.pipeline_bench:PipelineBench",
    tables=f"{_BENCH}.pipeline.pipeline_tables:TABLES",
    parts={
        name: Part(f"{_BENCH}.pipeline.parts:{function}", budget_s, needs="gpus" if name == "scale" else "")
        for name, (function, budget_s) in PIPELINE_PARTS.items()
    },
    time_limit_s=600.0,
    options=[
        Option(
            "model",
            None,
            "a checkpoint; BERT-base, bge-m3 and others: their shape; null. Default: the demo's, on a GPU BERT-base",
        ),
        _WORKER_ARGS,
        Option("commands", 1, "worker commands of the model's fleet, each started in the same way", int),
        Option("members", None, "members of the model's fleet, to wait for; default: as many as come up", int),
        Option("gpus", None, "numbers of GPUs for part scale, such as 1,2,4", numbers),
        *_AROUND,
        Option("rates", None, "open loops, requests/s; default: 1000,8000,10000,25000, on a CPU 50,200", numbers),
    ],
)
MODELS = BenchSuite(
    name="models",
    about="Models that people bring, by their shapes: workers behind a real Kafka, beside the engine alone.",
    bench=f"{_BENCH}.pipeline.pipeline_bench:PipelineBench",
    tables=f"{_BENCH}.pipeline.pipeline_tables:OF_MODELS",
    parts={
        **{name: Part(f"{_BENCH}.pipeline.parts:model", 120, (name,)) for name in MODEL_PARTS},
        ROUTE: Part(f"{_BENCH}.pipeline.parts:route", 140, (ROUTE_SHAPE,)),
    },
    time_limit_s=900.0,
    options=[_WORKER_ARGS, *_AROUND],
)
CHAOS = BenchSuite(
    name="chaos",
    about="Faults against brokers, workers and clients, and a check of every record.",
    bench=f"{_BENCH}.common.part_bench:PartBench",
    tables="penstock.ops.chaos.chaos_tables:TABLES",
    parts={"chaos": Part("penstock.ops.chaos.chaos_report:chaos", 2400)},
    time_limit_s=3 * 2400.0,
    options=[
        Option("seed", 1, "equal ones inject the same faults and send the same requests", int),
        Option("minutes", 10.0, "of the load, at most", float),
        Option("requests", None, "plain records after which the load ends", int),
        Option("processes", 2, "members of the worker", int),
        Option("rate", 200.0, "plain records a second, beside the calls", float),
        Option("callers", 8, "calls of clients at the same time", int),
        Option("load", "requests", "requests, or records of routes", choices=("requests", "routes")),
        Option("faults", "", "kinds, separated by commas; default: all of the load"),
        Option("delivery", "at_least_once", "of the worker", choices=("at_least_once", "exactly_once")),
        Option("log", None, "file that gets the worker's log"),
    ],
    is_kept=False,
)
SUITES = {one.name: one for one in (CPU, DELIVERY, ROUTES, SERVING, GPU, CELLULAR, GENERATION, PIPELINE, MODELS, CHAOS)}
