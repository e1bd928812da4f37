"""A model that generates: loaded, warmed up, and served step by step. Imports torch."""

import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import structlog

from penstock.engine import GenerationModel
from penstock.engine.errors import NotFinite, UnsupportedCheckpoint, wider_than
from penstock.engine.generation_options import GenerationOptions
from penstock.scheduler.settings import AdmissionName
from penstock.worker.batching.stage import ServedModel
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.stepping.contract import StepJob
from penstock.worker.stepping.generation_runner import GenerationRunner
from penstock.worker.stepping.generation_work import GenerationWork
from penstock.worker.stepping.step_model import StepModel

_WARM_UP_S = 3.0  # at most, beside its last task
_WARM_UP_ROWS = (1, 4, 16, 64)  # sequences that run together,
_MORE_WARM_UP_ROWS = (256, 1024)  # and on a GPU
# Decoder steps of one task under load: on a CPU a decision is short beside a step.
_MAX_QUANTUM, _MAX_GPU_QUANTUM = 4, 8
_WARM_UP_TOKENS = 8  # of each source, and of what is generated

log = structlog.get_logger("penstock.generation")


def served_generation(model: GenerationModel, admission: AdmissionName) -> Callable[[], ServedModel]:
    """Warm a model up, whose tasks are timed. Blocks for seconds. The result is called on the event loop.

    Raises UnsupportedCheckpoint for a model without finite scores.
    """
    options = model.options({"max_new_tokens": _WARM_UP_TOKENS, "min_new_tokens": _WARM_UP_TOKENS})
    shortest = replace(options, max_new_tokens=1, min_new_tokens=0, num_beams=1)
    probe = GenerationWork(np.zeros(1, np.int32), shortest, 0)
    is_on_cpu = model.info.device == "cpu"
    max_quantum = _MAX_QUANTUM if is_on_cpu else _MAX_GPU_QUANTUM
    quanta = [1 << power for power in range(max_quantum.bit_length())]
    generator = model.generator(len(os.sched_getaffinity(0)), quanta)
    runner = GenerationRunner(generator, model.limits, probe, max_quantum, admission)
    more = () if is_on_cpu else (rows for rows in _MORE_WARM_UP_ROWS if rows <= model.limits.max_rows)
    try:
        _warm_up(runner, options, (*_WARM_UP_ROWS, *more))
    except NotFinite as error:
        dtype = model.info.dtype
        raise UnsupportedCheckpoint(
            f"{model.info.name}: its scores hold NaN or infinity, though the weights do not. If numbers overflow in "
            f"{dtype}: {wider_than(dtype)}"
        ) from error
    return functools.partial(StepModel, model.info, runner, _work, probe, model.options)


def _work(sequence: SequenceBlock) -> GenerationWork:
    options = sequence.options
    if options.generation is None:
        raise RuntimeError("A sequence to generate for has no options. This is a bug.")
    streams = sequence.request.message.options.stream
    return GenerationWork(sequence.token_ids.astype(np.int32, copy=False), options.generation, options.seed, streams)


def _warm_up(runner: GenerationRunner, options: GenerationOptions, counts: Sequence[int]) -> None:
    """Run batches of growing size: libraries are loaded and compiled, and the scheduler learns the times of tasks."""
    started, num_tasks = time.monotonic(), 0
    for rows in counts:
        work = GenerationWork(np.zeros(_WARM_UP_TOKENS, np.int32), options, 0)
        runner.add([StepJob(row, work, started, None, False) for row in range(rows)])
        while not runner.is_idle and time.monotonic() - started < _WARM_UP_S:
            runner.advance(time.monotonic())
            num_tasks += 1
        if not runner.is_idle:
            runner.cancel(range(rows))
            break
    log.info("steps_timed", tasks=num_tasks, rows=rows, seconds=round(time.monotonic() - started, 3))
