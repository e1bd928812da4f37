"""Loads what the settings name: an encoder, a model that generates or one made of cells, and its tokenizer."""

from typing import TYPE_CHECKING

import structlog

import penstock.engine  # its functions that need torch are looked up when they are called
from penstock.engine import Engine
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.types import ModelInfo
from penstock.producer.tokenization import Tokenizer
from penstock.producer.tokenizer_files import MissingTokenizer, TokenizerError
from penstock.worker.model_settings import NULL_MODEL, ModelSettings
from penstock.worker.resolved_settings import batch_caps_on

if TYPE_CHECKING:
    from penstock.engine import GenerationModel, ServedCells

log = structlog.get_logger("penstock.worker")


def load_model(settings: ModelSettings) -> "Engine | GenerationModel | ServedCells":
    """Load a checkpoint. One that has a generating head generates, unless the settings want it as an encoder.

    Raises EngineError.
    """
    if settings.cells is not None or penstock.engine.is_made_of_cells(settings.model):
        return penstock.engine.load_served_cells(
            settings.model,
            cells=settings.cells,
            name=settings.served_name,
            dtype=settings.dtype,
            device=settings.device,
            max_rows=settings.max_batch_sequences,
            num_slots=settings.state_slots,
        )
    is_of_vectors = settings.head is not None or settings.int8_ranges is not None
    if not is_of_vectors and settings.engine != "padded" and penstock.engine.generates(settings.model):
        device = penstock.engine.choose_device(settings.device)
        max_rows, max_tokens = batch_caps_on(settings, device)
        return penstock.engine.load_generation_model(
            settings.model,
            name=settings.served_name,
            dtype=settings.dtype,
            device=device,
            max_rows=max_rows,
            max_encode_tokens=max_tokens,
            page_bytes=None if settings.page_memory_mib is None else settings.page_memory_mib << 20,
        )
    return penstock.engine.load_engine(
        settings.model,
        name=settings.served_name,
        head=None if settings.head is None else str(settings.head),
        int8_ranges=None if settings.int8_ranges is None else str(settings.int8_ranges),
        dtype=settings.dtype,
        device=settings.device,
        engine=settings.engine,
    )


def require_encoder(loaded: "Engine | GenerationModel | ServedCells") -> Engine:
    """The loaded model, if it is an encoder. Raises UnsupportedCheckpoint."""
    if not isinstance(loaded, Engine):
        what = "generates" if "generate" in loaded.info.tasks else "is made of cells"
        raise UnsupportedCheckpoint(f"{loaded.info.name!r} {what}, and only an encoder can be used here.")
    return loaded


def load_tokenizer(settings: ModelSettings, info: ModelInfo) -> Tokenizer | None:
    """Load the tokenizer of the model; None, with a warning, if it has none. The caller closes it.

    Raises CheckpointError where it has one that cannot be loaded as transformers loads it, and where the model's limit
    leaves no room for text.
    """
    if settings.model == NULL_MODEL:
        return None
    try:
        tokenizer = Tokenizer.from_directory(penstock.engine.resolve_model(settings.model))
    except MissingTokenizer as error:
        log.warning("no_tokenizer", reason=str(error), consequence="requests with text are rejected")
        return None
    except TokenizerError as error:
        raise CheckpointError(str(error)) from error
    try:
        tokenizer.require_room(info.cut_tokens or info.max_tokens)
    except ValueError as error:
        tokenizer.close()
        raise CheckpointError(
            f"{settings.model}: {error} The checkpoint states this limit (max_seq_length, model_max_length)."
        ) from error
    return tokenizer
