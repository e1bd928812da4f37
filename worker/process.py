"""The process around a worker: logs, model, cache, signals, exit code."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from pathlib import Path
from wsgiref.simple_server import WSGIServer

import structlog
import uvloop
from prometheus_client import start_http_server

from penstock.cache import ResponseCache
from penstock.engine import Engine, EngineLanes, NullEngine, load_engine, resolve_model
from penstock.producer.tokenization import Tokenizer, TokenizerError
from penstock.scheduler import LearnedCost
from penstock.worker.batching.startup_costs import BUDGET_S, cost_for, default_cost_path
from penstock.worker.settings import WorkerSettings
from penstock.worker.telemetry.logs import configure_logs
from penstock.worker.worker import Worker

NULL_MODEL = "null"
_GPU_CAPS = {"max_batch_tokens": 16_384, "max_batch_sequences": 1024}
_NULL_BUDGET_S = 1.0  # for measuring an engine that does no work
_SWITCH_INTERVAL_S = 0.0005  # engine lanes hand the interpreter back and forth with the event loop at each tensor call

log = structlog.get_logger("penstock.serve")


def serve(settings: WorkerSettings) -> int:
    """Run one worker until SIGTERM, SIGINT or, with `once`, the end of the topics. Blocks; returns the exit code.

    Raises:
        EngineError: the model cannot be loaded.
        TokenizerError: its tokenizer is broken.
    """
    configure_logs(settings.log_format, settings.log_level)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    log.info("worker_starting", **settings.model_dump(mode="json", exclude_none=True))
    engine = load(settings)
    settings = suited(settings, engine)
    cost = _cost(engine, settings)
    _calm_garbage_collection()
    return uvloop.run(_run(settings, engine, cost))


def _calm_garbage_collection() -> None:
    """Records in flight are many and short-lived, and none is part of a cycle: full collections only cost pauses."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)


def load(settings: WorkerSettings) -> Engine:
    """The engine that the settings name. Raises EngineError."""
    if settings.model == NULL_MODEL:
        return NullEngine(name=settings.served_name or NULL_MODEL)
    started = time.monotonic()
    engine = load_engine(
        settings.model,
        name=settings.served_name,
        head=str(settings.head) if settings.head is not None else None,
        dtype=settings.dtype,
        device=settings.device,
        engine=settings.engine,
    )
    info = engine.info
    log.info(
        "model_loaded",
        model=info.name,
        revision=info.revision[:16],
        dtype=info.dtype,
        device=info.device,
        padded=info.padded,
        tasks=sorted(info.tasks),
        max_tokens=info.max_tokens,
        labels=len(info.labels),
        seconds=round(time.monotonic() - started, 3),
    )
    return engine


def _cost(engine: Engine, settings: WorkerSettings) -> LearnedCost:
    """The cost model to start with; the engine is warm afterwards."""
    is_null = settings.model == NULL_MODEL
    costs = cost_for(
        engine,
        None if is_null else settings.cost_path or default_cost_path(),
        model=settings.model,
        max_sequences=settings.max_batch_sequences,
        max_tokens=settings.max_batch_tokens,
        budget_s=_NULL_BUDGET_S if is_null else BUDGET_S,
    )
    # Not asyncio.run, whose handler of Ctrl-C waits for the loop, which the timings hold for seconds.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(costs)


async def _run(settings: WorkerSettings, engine: Engine, cost: LearnedCost) -> int:
    async with contextlib.AsyncExitStack() as stack:
        lanes = EngineLanes(engine, settings.lanes or default_lanes(engine))
        stack.push_async_callback(lanes.close)
        tokenizer = _tokenizer(settings)
        if tokenizer is not None:
            stack.callback(tokenizer.close)
        cache = await _open_cache(settings, stack)
        worker = Worker(settings, engine, lanes, cost, tokenizer=tokenizer, cache=cache)
        if settings.metrics_port is not None:
            stack.callback(_serve_metrics(settings.metrics_port, worker).shutdown)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(worker.on_loop_error)
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, worker.stop)
        return await worker.run()


def _serve_metrics(port: int, worker: Worker) -> WSGIServer:
    try:
        server, _ = start_http_server(port, registry=worker.metrics.registry)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"--metrics-port {port}") from error
    log.info("metrics_served", port=server.server_port)
    return server


def suited(settings: WorkerSettings, engine: Engine) -> WorkerSettings:
    """The settings with the caps that nobody chose fitted to the engine: it takes larger batches to fill a GPU."""
    if engine.info.device == "cpu":
        return settings
    return settings.model_copy(update={k: v for k, v in _GPU_CAPS.items() if k not in settings.model_fields_set})


def default_lanes(engine: Engine) -> int:
    """One lane a core that this process may use; one for a GPU, which it keeps busy."""
    return len(os.sched_getaffinity(0)) if engine.info.device == "cpu" else 1


def _tokenizer(settings: WorkerSettings) -> Tokenizer | None:
    if settings.model == NULL_MODEL:
        return None
    try:
        return Tokenizer.from_directory(resolve_model(settings.model))
    except TokenizerError as error:
        log.warning("no_tokenizer", reason=str(error), consequence="requests with text are refused")
        return None


async def _open_cache(settings: WorkerSettings, stack: contextlib.AsyncExitStack) -> ResponseCache | None:
    if settings.cache_path is None:
        return None
    cache = await ResponseCache.open(
        Path(settings.cache_path), max_bytes=settings.cache_max_bytes, ttl_s=settings.cache_ttl_s
    )
    stack.push_async_callback(cache.close)
    return cache
