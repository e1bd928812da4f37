"""The process around a worker: logs, engine, tokenizer, cache, metrics, signals, exit code."""

import asyncio
import contextlib
import ctypes
import faulthandler
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
import uvloop

import penstock.engine  # its names that need torch are looked up when they are used
from penstock.cache import ResponseCache
from penstock.engine import Engine, NullEngine, PipelinedEngine
from penstock.engine.errors import UnsupportedDevice
from penstock.scheduler import LearnedCost
from penstock.worker.auto_int8 import load_auto_int8
from penstock.worker.batching.encoder_model import EncoderModel
from penstock.worker.batching.stage import ServedModel
from penstock.worker.batching.startup_costs import BUDGET_S, cost_for
from penstock.worker.control_socket import PING_EVERY_S, SupervisorLink
from penstock.worker.garbage_collection import calm_garbage_collection
from penstock.worker.model_loading import load_model, load_tokenizer, require_encoder
from penstock.worker.model_settings import NULL_MODEL, ModelSettings
from penstock.worker.process_signals import handle_stop_signals, ignore_resize_signals
from penstock.worker.resolved_settings import ResolvedSettings, resolve
from penstock.worker.settings import WorkerSettings
from penstock.worker.telemetry.logs import configure_logs, label_logs
from penstock.worker.telemetry.status_server import Status, serve_status
from penstock.worker.telemetry.traces import open_traces
from penstock.worker.worker import LEAVE_S, Worker

if TYPE_CHECKING:
    from penstock.engine import GenerationModel, ServedCells

_NULL_BUDGET_S = 1.0  # time to measure an engine that does no work
_SHARE_BESIDE = 0.25  # of the device, for warming up while other members answer requests with it
_SWITCH_INTERVAL_S = 0.0001  # engine lanes and the event loop take turns at each tensor call, batch and result

_CLOSE_S = 2.0  # for the running batch
_END_S = 10.0  # for it and the interpreter's end, which the process may spend part of standing still
EXIT_S = LEAVE_S + _END_S  # after the drain: a process that was asked to stop has ended, whatever hangs

# Of the C library's heap.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of the two options
_KEPT_BYTES = 64 << 20  # more than the buffers of the batches that are on their way take
_LARGEST_BYTES = 32 << 20  # the most that glibc takes from a heap

log = structlog.get_logger("penstock.worker")


def run_worker(settings: WorkerSettings, supervisor: SupervisorLink | None = None) -> int:
    """Run one worker until SIGTERM, SIGINT or, with `once`, the end of the topics. Blocks; returns the exit code.

    A second SIGTERM or SIGINT ends the process at once. `supervisor`: of a member that is one of several here. A worker
    without one drains on SIGHUP too.

    Raises:
        EngineError: the model or its tokenizer cannot be loaded, or not run in so many lanes.
    """
    labels = {} if supervisor is None else {"worker": supervisor.worker}
    configure_logs(settings.log_format, settings.log_level, settings.log_file, **labels)
    ignore_resize_signals()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    keep_freed_memory()
    is_first = supervisor is None or supervisor.worker == 0  # the settings of all members are the same
    if is_first:
        log.info("worker_starting", **settings.model_dump(mode="json", include=settings.model_fields_set))
    engine = load(settings)
    has_one_lane = isinstance(engine, PipelinedEngine) or not isinstance(engine, Engine)
    if has_one_lane and (settings.lanes or 1) > 1:
        raise UnsupportedDevice(f"--lanes: {engine.info.device} runs one lane. Given: {settings.lanes}")
    label_logs({"model": engine.info.name})
    resolved = resolve(settings, engine.info, 1 if supervisor is None else supervisor.processes)
    if is_first:
        log.info("settings_resolved", **resolved.model_dump(mode="json"))
    is_beside = supervisor is not None and supervisor.is_beside
    make_served = _warm(engine, resolved, _SHARE_BESIDE if is_beside else 1.0)
    calm_garbage_collection()
    return uvloop.run(_run(resolved, make_served, supervisor))


def load(settings: ModelSettings) -> "Engine | GenerationModel | ServedCells":
    """Load the model that the settings name, of any kind. Raises EngineError."""
    if settings.model == NULL_MODEL and settings.cells is None:
        return NullEngine(name=settings.served_name or NULL_MODEL)
    started = time.monotonic()
    engine = load_auto_int8(settings) if settings.dtype == "auto-int8" else load_model(settings)
    info = engine.info
    log.info(
        "model_loaded",
        model=info.name,
        revision=info.revision[:16],
        dtype=info.dtype,
        device=info.device,
        padded=info.padded,
        tasks=info.request_tasks,
        max_tokens=info.max_tokens,
        labels=len(info.labels),
        seconds=round(time.monotonic() - started, 3),
    )
    return engine


def load_encoder(settings: ModelSettings) -> Engine:
    """`load`, for what runs encoders only. Raises UnsupportedCheckpoint for another model."""
    return require_encoder(load(settings))


def _warm(
    engine: "Engine | GenerationModel | ServedCells", settings: ResolvedSettings, device_share: float
) -> Callable[[], ServedModel]:
    """Warm the model up, and learn what it costs. The result is called on the event loop.

    `device_share`: of the warm-up, see `penstock.engine.warm_up`.
    """
    if isinstance(engine, Engine):
        return functools.partial(EncoderModel, engine, settings.lanes, _cost(engine, settings, device_share))
    if isinstance(engine, penstock.engine.ServedCells):
        from penstock.worker.stepping.cell_model import served_cells  # imports torch

        return served_cells(engine, settings.admission)
    from penstock.worker.stepping.generation_model import served_generation  # imports torch

    return served_generation(engine, settings.admission)


def _cost(engine: Engine, settings: ResolvedSettings, device_share: float) -> LearnedCost:
    """Load or measure the initial cost model. The engine is warm afterwards."""
    is_null = settings.model == NULL_MODEL
    costs = cost_for(
        engine,
        None if is_null else settings.cost_path,
        model=settings.model,
        max_sequences=settings.max_batch_sequences,
        max_tokens=settings.max_batch_tokens,
        budget_s=_NULL_BUDGET_S if is_null else BUDGET_S,
        device_share=device_share,
    )
    # asyncio.run would delay Ctrl-C: its handler waits for the event loop, which the timings block for seconds.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(costs)


async def _run(
    settings: ResolvedSettings, make_served: Callable[[], ServedModel], supervisor: SupervisorLink | None
) -> int:
    served = make_served()
    code = 1
    try:
        code = await _run_worker(settings, served, supervisor)
    finally:
        _end_within(_END_S)
        if not await served.close(_CLOSE_S):
            log.error("lane_hung", consequence="the process ends without waiting for its batch")
            sys.stdout.flush()
            os._exit(code)  # a thread in the middle of a computation may crash the interpreter's own end
    return code


async def _run_worker(settings: ResolvedSettings, served: ServedModel, supervisor: SupervisorLink | None) -> int:
    async with contextlib.AsyncExitStack() as stack:
        tokenizer = None if served.read_fields is not None else load_tokenizer(settings, served.info)
        if tokenizer is not None:
            stack.callback(tokenizer.close)
        cache = await _open_cache(settings, stack)
        number = 0 if supervisor is None else supervisor.worker
        traces = await stack.enter_async_context(open_traces(settings, served.info, number))
        worker = Worker(settings, served, tokenizer=tokenizer, cache=cache, traces=traces, number=number)
        port = None
        if settings.metrics_port is not None:
            config = functools.partial(settings.model_dump, mode="json")
            status = Status(worker.metrics.registry, lambda: _not_ready(worker), served.fault, config)
            server = serve_status(settings.metrics_host, settings.metrics_port, status)
            stack.callback(server.shutdown)
            port = server.server_port
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(worker.stop_signal.on_loop_error)
        # Whatever stops the worker, a signal or a failure, its process ends.
        worker.stop_signal.on_ask = functools.partial(_end_within, settings.drain_s + EXIT_S)
        handle_stop_signals(loop, worker.stop, is_member=supervisor is not None)
        if supervisor is None:
            return await worker.run()
        supervisor.report(phase="loaded", device=settings.device, metrics_port=port, group_id=settings.group_id)
        stack.callback(asyncio.create_task(_report(supervisor, worker)).cancel)
        return await worker.run(supervisor.may_join(worker.stop))


def _end_within(seconds: float) -> None:
    """Print all stacks and exit with code 1 after this time, unless the process has ended before. The last call counts.

    faulthandler's timer needs no event loop and no interpreter lock, which an engine that hangs may hold.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)


async def _report(supervisor: SupervisorLink, worker: Worker) -> None:
    """Ping the supervisor from the event loop. Say when the worker has joined its group, and what it may not read."""
    joining = asyncio.create_task(worker.consumer.assigned.wait())
    while True:
        await asyncio.wait((joining,), timeout=PING_EVERY_S)
        if joining.done():
            consumer = worker.consumer
            supervisor.report(phase="joined", member_id=consumer.member_id, denied=consumer.denied)
            await asyncio.sleep(PING_EVERY_S)
        else:
            supervisor.report()


def _not_ready(worker: Worker) -> str:
    """Why a worker does not serve; empty if it does. Its engine is warm since before it was made."""
    if worker.stop_signal.failure is not None:
        return f"failed: {worker.stop_signal.failure!r}"
    if worker.stop_signal.is_set():
        return "draining"
    return worker.consumer.waits_for


async def _open_cache(settings: WorkerSettings, stack: contextlib.AsyncExitStack) -> ResponseCache | None:
    if settings.cache_path is None:
        return None
    cache = await ResponseCache(
        settings.cache_path, max_bytes=settings.cache_max_bytes, ttl_s=settings.cache_ttl_s
    ).open()
    stack.push_async_callback(cache.close)
    return cache


def keep_freed_memory() -> None:
    """Keep memory that was freed for the next batch, up to 64 MiB of each thread. Called once, by the process.

    A batch of replies of a megabyte is copied several times on its way to the socket. By default glibc gives such
    buffers back to the kernel when they are freed, and takes them again with a page fault for each 4 KiB. Without these
    faults a reply of 3 KB takes 0.6 µs in place of 7 µs, on two cores. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
