"""The process around a worker: logs, engine, tokenizer, cache, metrics, signals, exit code."""

import asyncio
import contextlib
import faulthandler
import functools
import gc
import os
import signal
import sys
import time

import structlog
import uvloop

import penstock.engine  # its functions that need torch are looked up when they are called
from penstock.cache import ResponseCache
from penstock.engine import Engine, EngineLanes, NullEngine, PipelinedEngine
from penstock.engine.errors import UnsupportedDevice
from penstock.producer.tokenization import Tokenizer, TokenizerError
from penstock.scheduler import LearnedCost
from penstock.worker.batching.startup_costs import BUDGET_S, cost_for
from penstock.worker.engine_probe import EngineProbe
from penstock.worker.resolved_settings import ResolvedSettings, resolve
from penstock.worker.settings import NULL_MODEL, ModelSettings, WorkerSettings
from penstock.worker.supervision.control import PING_EVERY_S, SupervisorLink
from penstock.worker.telemetry.logs import configure_logs, label_logs
from penstock.worker.telemetry.status_server import Status, serve_status
from penstock.worker.telemetry.traces import open_traces
from penstock.worker.worker import LEAVE_S, Worker

_NULL_BUDGET_S = 1.0  # time to measure an engine that does no work
_SWITCH_INTERVAL_S = 0.0001  # engine lanes and the event loop take turns at each tensor call, batch and result

_CLOSE_S = 2.0  # for the running batch, and as much for the interpreter's end
EXIT_S = LEAVE_S + 2 * _CLOSE_S + 6.0  # after the drain: a process that was asked to stop has ended, whatever hangs

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_RESIZE_SIGNALS = (signal.SIGTTIN, signal.SIGTTOU)  # of a supervisor

log = structlog.get_logger("penstock.serve")


def run_worker(settings: WorkerSettings, supervisor: SupervisorLink | None = None) -> int:
    """Run one worker until SIGTERM, SIGINT or, with `once`, the end of the topics. Blocks; returns the exit code.

    A second SIGTERM or SIGINT ends the process at once. `supervisor`: of a member that is one of several here. A worker
    without one drains on SIGHUP too.

    Raises:
        EngineError: the model cannot be loaded, or not run in so many lanes.
        TokenizerError: the model's tokenizer is invalid.
    """
    labels = {} if supervisor is None else {"worker": supervisor.worker}
    configure_logs(settings.log_format, settings.log_level, **labels)
    for number in _RESIZE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # they would suspend the process
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    is_first = supervisor is None or supervisor.worker == 0  # the settings of all members are the same
    if is_first:
        log.info("worker_starting", **settings.model_dump(mode="json", include=settings.model_fields_set))
    engine = load(settings)
    if isinstance(engine, PipelinedEngine) and (settings.lanes or 1) > 1:
        raise UnsupportedDevice(f"--lanes: {engine.info.device} runs one lane. Given: {settings.lanes}")
    label_logs({"model": engine.info.name})
    resolved = resolve(settings, engine.info, 1 if supervisor is None else supervisor.processes)
    if is_first:
        log.info("settings_resolved", **resolved.model_dump(mode="json"))
    cost = _cost(engine, resolved)
    _tune_garbage_collection()
    return uvloop.run(_run(resolved, engine, cost, supervisor))


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


async def _run(settings: ResolvedSettings, engine: Engine, cost: LearnedCost, supervisor: SupervisorLink | None) -> int:
    lanes = EngineLanes(engine, settings.lanes)
    code = 1
    try:
        code = await _run_worker(settings, engine, lanes, cost, supervisor)
    finally:
        _end_within(2 * _CLOSE_S)
        if not await lanes.close(_CLOSE_S):
            log.error("lane_hung", consequence="the process ends without waiting for its batch")
            sys.stdout.flush()
            os._exit(code)  # a thread in the middle of a computation may crash the interpreter's own end
    return code


async def _run_worker(
    settings: ResolvedSettings,
    engine: Engine,
    lanes: EngineLanes,
    cost: LearnedCost,
    supervisor: SupervisorLink | None,
) -> int:
    async with contextlib.AsyncExitStack() as stack:
        tokenizer = load_tokenizer(settings)
        if tokenizer is not None:
            stack.callback(tokenizer.close)
        cache = await _open_cache(settings, stack)
        number = 0 if supervisor is None else supervisor.worker
        traces = await stack.enter_async_context(open_traces(settings, engine.info, number))
        worker = Worker(settings, engine, lanes, cost, tokenizer=tokenizer, cache=cache, traces=traces, number=number)
        port = None
        if settings.metrics_port is not None:
            probe = EngineProbe(lanes, min(engine.info.tasks))
            config = functools.partial(settings.model_dump, mode="json")
            status = Status(worker.metrics.registry, lambda: _not_ready(worker), probe.fault, config)
            server = serve_status(settings.metrics_host, settings.metrics_port, status)
            stack.callback(server.shutdown)
            port = server.server_port
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(worker.stop_signal.on_loop_error)
        # Whatever stops the worker, a signal or a failure, its process ends.
        worker.stop_signal.on_ask = functools.partial(_end_within, settings.drain_s + EXIT_S)
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, _stop, loop, worker, supervisor is None)
        if supervisor is None:
            _handle_supervisor_signals(loop, worker)
            return await worker.run()
        supervisor.report(phase="loaded", device=settings.device, metrics_port=port, group_id=settings.group_id)
        stack.callback(asyncio.create_task(_report(supervisor, worker)).cancel)
        return await worker.run(supervisor.may_join(worker.stop))


def _stop(loop: asyncio.AbstractEventLoop, worker: Worker, second_kills: bool) -> None:
    """Drain. Where `second_kills`, the next SIGTERM or SIGINT ends the process at once.

    Not in a member: its supervisor and the sender of a signal to the whole control group may send one each.
    """
    for number in _STOP_SIGNALS if second_kills else ():
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
    worker.stop()


def _handle_supervisor_signals(loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    """Handle the signals by which several members are rolled and resized: one process drains, and is not resized."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        loop.add_signal_handler(signal.SIGHUP, _stop, loop, worker, False)
    for number in _RESIZE_SIGNALS:
        loop.add_signal_handler(number, _ignore, number)


def _ignore(number: signal.Signals) -> None:
    log.warning("signal_ignored", signal=number.name, reason="one process has no members to add or to remove")


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


def load_tokenizer(settings: ModelSettings) -> Tokenizer | None:
    """Load the tokenizer of the model; None, with a warning, if it has none. The caller closes it."""
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
    cache = await ResponseCache(
        settings.cache_path, max_bytes=settings.cache_max_bytes, ttl_s=settings.cache_ttl_s
    ).open()
    stack.push_async_callback(cache.close)
    return cache
