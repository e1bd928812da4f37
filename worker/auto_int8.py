"""`--dtype auto-int8`: eight bits where a model loses little by them on this machine, else what `auto` takes."""

import asyncio
from collections.abc import Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import structlog

import penstock.engine  # its functions that need torch are looked up when they are called
from penstock.cache import CostTables
from penstock.engine.errors import CheckpointError, UnsupportedDevice
from penstock.engine.types import ENTAIL
from penstock.producer.wire.messages import Text
from penstock.worker.batching.startup_costs import cost_key
from penstock.worker.built_in_texts import plain_texts
from penstock.worker.model_loading import load_model, load_tokenizer, require_encoder
from penstock.worker.model_settings import ModelSettings
from penstock.worker.resolved_settings import default_cost_path

if TYPE_CHECKING:
    from penstock.engine import Engine, GenerationModel, PrecisionLoss, ServedCells

_MOST_TOKENS = 512  # of a text that is measured: a pass of the longest that a model takes may last minutes

log = structlog.get_logger("penstock.worker")


def load_auto_int8(settings: ModelSettings) -> "Engine | GenerationModel | ServedCells":
    """The model in int8, or in what "auto" is for it. Logs which, and why. Raises EngineError, as `load_model` does.

    The first time for a model, machine and version, the built-in texts run in int8 and in float32, which blocks for
    seconds. The figures are kept in the file of cost tables.
    """
    try:
        ours = require_encoder(load_model(_in(settings, "int8")))
    except (UnsupportedDevice, CheckpointError) as error:
        return _as_auto(settings, str(error))
    tables = CostTables(settings.cost_path or default_cost_path())
    key = cost_key(ours.info, settings.model)
    kept = _wait_for(tables.get_loss(key))
    loss = None if kept is None else penstock.engine.PrecisionLoss.from_dict(kept)
    is_kept = loss is not None
    if loss is None:
        loss = _measured(settings, ours)
        if loss is None:
            return _as_auto(settings, "the model has no tokenizer to measure with")
        if loss.is_finite():  # JSON has no NaN
            _wait_for(tables.put_loss(key, loss.to_dict()))
    figures = {"measured": "earlier" if is_kept else "now", **loss.to_dict()}
    if excess := loss.excess():
        del ours
        return _as_auto(settings, excess, **figures)
    log.info("int8_taken", **figures)
    return ours


def _as_auto(settings: ModelSettings, reason: str, **figures: Any) -> "Engine | GenerationModel | ServedCells":
    log.info("int8_not_taken", reason=reason, **figures)
    return load_model(_in(settings, "auto"))


def _in(settings: ModelSettings, dtype: str) -> ModelSettings:
    return settings.model_copy(update={"dtype": dtype})


def _measured(settings: ModelSettings, ours: "Engine") -> "PrecisionLoss | None":
    tokenizer = load_tokenizer(settings, ours.info)
    if tokenizer is None:
        return None
    most = min(ours.info.cut_tokens or ours.info.max_tokens, _MOST_TOKENS)
    with closing(tokenizer):
        encoded = tokenizer.encode(_texts(ours.info.tasks), truncate=True, max_tokens=most)
    on_cpu = settings.model_copy(update={"dtype": "float32", "device": "cpu"})  # a GPU has no float32
    exact = require_encoder(load_model(on_cpu))
    return penstock.engine.measure_loss(ours, exact, [(one.ids, one.token_type_ids) for one in encoded])


def _texts(tasks: Collection[str]) -> list[Text]:
    """Plain ones, and pairs of them for tasks of pairs: what scores of a text alone lose may be nothing beside it."""
    texts = plain_texts()
    pairs = zip(texts, texts[1:] + texts[:1], strict=True) if {"rerank", ENTAIL} & {*tasks} else ()
    return [*texts, *pairs]


def _wait_for(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run in a thread of its own, for a command may load a model on an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
