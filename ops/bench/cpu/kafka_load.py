"""A real broker, a service behind it and a load in front of it, for the parts through Kafka."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.processes import Service, run_once
from penstock.ops.bench.common.setup import Setup
from penstock.ops.bench.cpu.load_spec import LoadResult, LoadSpec
from penstock.ops.kafka import KafkaBroker

SERVED_NAME = "minilm"


def worker(setup: Setup, broker: KafkaBroker, settings: Mapping[str, Any], *, profile: Path | None = None) -> Service:
    """A worker process with these settings beside the defaults. `profile`: file of its samples."""
    settings = {"bootstrap_servers": broker.bootstrap_servers, "log_format": "json", **settings}
    spec = {"settings": settings, "profile": None if profile is None else str(profile)}
    return Service("cpu.worker_process", spec, setup.logs / "worker.jsonl")


def minilm_worker(setup: Setup, broker: KafkaBroker, dtype: str) -> Service:
    """A worker with the model and its dtype; all other settings are defaults."""
    group = {"group_id": f"penstock.{SERVED_NAME}.{dtype}"}
    return worker(setup, broker, {"model": str(setup.model), "served_name": SERVED_NAME, "dtype": dtype, **group})


def faststream_service(setup: Setup, broker: KafkaBroker, dtype: str) -> Service:
    """The alternative: FastStream and sentence-transformers."""
    spec = {
        "bootstrap_servers": broker.bootstrap_servers,
        "model": str(setup.model),
        "dtype": dtype,
        "cores": setup.cores,
    }
    return Service("cpu.faststream_service", spec, setup.logs / "faststream.log")


def offer_load(setup: Setup, broker: KafkaBroker, watch: Mapping[str, int], **load: Any) -> LoadResult:
    """Run one load (fields of LoadSpec) in a process of its own, the broker watched too."""
    if broker.pid is None:
        raise RuntimeError("The broker ended during the benchmark.")
    spec = LoadSpec(bootstrap_servers=broker.bootstrap_servers, watch={**watch, "broker": broker.pid}, **load)
    return LoadResult(**run_once("cpu.load_generator", dataclasses.asdict(spec), setup.logs / "load.log"))
