"""The process around a worker: logs, engine, tokenizer, cache, metrics, signals, exit code."""

import asyncio
import contextlib
import gc
import signal
import sys
import time
from wsgiref.simple_server import WSGIServer

import structlog
import uvloop
from prometheus_client import start_http_server

import penstock.engine  # its functions that need torch are looked up when they are called
from penstock.cache import ResponseCache
from penstock.engine import Engine, EngineLanes, NullEngine, PipelinedEngine
from penstock.engine.errors import UnsupportedDevice
from penstock.producer.tokenization import Tokenizer, TokenizerError
from penstock.scheduler import LearnedCost
from penstock.worker.batching.startup_costs import BUDGET_S, cost_for
from penstock.worker.resolved_settings import ResolvedSettings, resolve
from penstock.worker.settings import NULL_MODEL, ModelSettings, WorkerSettings
from penstock.worker.telemetry.logs import configure_logs
from penstock.worker.worker import Worker

_NULL_BUDGET_S = 1.0  # time to measure an engine that does no work
_SWITCH_INTERVAL_S = 0.0005  # engine lanes and the event loop exchange the interpreter lock at each tensor call

log = structlog.get_logger("penstock.serve")


def serve(settings: WorkerSettings) -> int:
    """Run one worker until SIGTERM, SIGINT or, with `once`, the end of the topics. Blocks; returns the exit code.

    Raises:
        EngineError: the model cannot be loaded, or not run in so many lanes.
        TokenizerError: the model's tokenizer is invalid.
    """
    configure_logs(settings.log_format, settings.log_level)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    log.info("worker_starting", **settings.model_dump(mode="json", include=settings.model_fields_set))
    engine = load(settings)
    if isinstance(engine, PipelinedEngine) and (settings.lanes or 1) > 1:
        raise UnsupportedDevice(f"--lanes: {engine.info.device} runs one lane. Given: {settings.lanes}")
    resolved = resolve(settings, engine.info)
    log.info("settings_resolved", **resolved.model_dump(mode="json"))
    cost = _cost(engine, resolved)
    _tune_garbage_collection()
    return uvloop.run(_run(resolved, engine, cost))


def _tune_garbage_collection() -> None:
    """Collect rarely: records in flight are many, short-lived and free of cycles, so full collections only pause."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)


def load(settings: ModelSettings) -> Engine:
    """Load the engine that the settings name. Raises EngineError."""
    if settings.model == NULL_MODEL:
        return NullEngine(name=settings.served_name or NULL_MODEL)
    started = time.monotonic()
    engine = penstock.engine.load_engine(
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


def _cost(engine: Engine, settings: ResolvedSettings) -> LearnedCost:
    """Load or measure the initial cost model. The engine is warm afterwards."""
    is_null = settings.model == NULL_MODEL
    costs = cost_for(
        engine,
        None if is_null else settings.cost_path,
        model=settings.model,
        max_sequences=settings.max_batch_sequences,
        max_tokens=settings.max_batch_tokens,
        budget_s=_NULL_BUDGET_S if is_null else BUDGET_S,
    )
    # asyncio.run would delay Ctrl-C: its handler waits for the event loop, which the timings block for seconds.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(costs)


async def _run(settings: ResolvedSettings, engine: Engine, cost: LearnedCost) -> int:
    async with contextlib.AsyncExitStack() as stack:
        lanes = EngineLanes(engine, settings.lanes)
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


def _tokenizer(settings: WorkerSettings) -> Tokenizer | None:
    if settings.model == NULL_MODEL:
        return None
    try:
        return Tokenizer.from_directory(penstock.engine.resolve_model(settings.model))
    except TokenizerError as error:
        log.warning("no_tokenizer", reason=str(error), consequence="requests with text are rejected")
        return None


async def _open_cache(settings: WorkerSettings, stack: contextlib.AsyncExitStack) -> ResponseCache | None:
    if settings.cache_path is None:
        return None
    cache = await ResponseCache.open(
        settings.cache_path, max_bytes=settings.cache_max_bytes, ttl_s=settings.cache_ttl_s
    )
    stack.push_async_callback(cache.close)
    return cache
