"""Loader of `PaddedEngine`: a model of transformers' own code, never the checkpoint's, tried before use."""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES

from penstock.engine.cpu.ops import cpu_precision
from penstock.engine.device import choose_device, device_name, gpu_precision
from penstock.engine.errors import CheckpointError, EngineError, UnsupportedCheckpoint, UnsupportedDevice, wider_than
from penstock.engine.families import FAMILIES
from penstock.engine.families.bart import end_token
from penstock.engine.families.heads import linear_head, logit_heads, logit_score
from penstock.engine.int8_ranges import read_int8_ranges
from penstock.engine.model.adapter import has_adapter
from penstock.engine.model.admission import CLASSIFY, EMBED, RERANK, TOKEN_CLASSIFY
from penstock.engine.model.checkpoint import Checkpoint, require_no_layers
from penstock.engine.model.files import setting
from penstock.engine.model.modules import embedding_tail, matryoshka_dimensions, max_tokens_beyond, max_tokens_of
from penstock.engine.model.results import Head, on_device
from penstock.engine.padded.engine import PaddedEngine
from penstock.engine.types import ModelInfo, PackedBatch, TaskOptions

_AUTO_CLASSES: dict[str, Any] = {  # by the checkpoint's task; transformers leaves them untyped
    CLASSIFY: transformers.AutoModelForSequenceClassification,
    TOKEN_CLASSIFY: transformers.AutoModelForTokenClassification,
}
_ENCODER: Any = transformers.AutoModel
_ENCODER_OF_TWO: Any = transformers.AutoModelForTextEncoding  # without the decoder, where a model type has one
# Beside those of FAMILIES. transformers clamps what overflows, and so computes something else.
_OVERFLOW_FLOAT16 = frozenset({"longt5"})
_TRIAL_TOKENS = 1024  # of the longer sequence, unless the model takes fewer
_MAX_REASON_CHARS = 300  # transformers' messages may list all of its models
_TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}  # largest difference over largest value


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress bars and warnings of transformers."""
    logging: Any = transformers.utils.logging
    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


@_quiet()
def load_padded(
    checkpoint: Checkpoint,
    name: str,
    revision: str,
    *,
    head: str | None = None,
    int8_ranges: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    threads: int = 1,
) -> PaddedEngine:
    """The engine of a checkpoint whose encoder transformers has. See `penstock.engine.load_engine`.

    On a GPU, cuDNN's attention is disabled for the whole process. It makes a plan for each new shape in each thread,
    and shapes of padded batches rarely repeat. Measured on an H200 with BERT-base and some 14 sequences: 48 ms for a
    new shape with it, 5 to 8 ms without; no difference for a known shape.

    Raises CheckpointError, UnsupportedCheckpoint, UnsupportedDevice.
    """
    if has_adapter(checkpoint.root):  # transformers ignores it where PEFT is not installed
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: a padded model's adapter is not loaded. Merge it.")
    on_gpu = choose_device(device, padded=True) == "cuda"
    precision = _precision(dtype, str(checkpoint.config["model_type"]), on_gpu=on_gpu)
    task = EMBED if head is not None else checkpoint.task
    _require_fixed(checkpoint)
    model = _load(checkpoint, task, getattr(torch, precision))
    _require_one_end(model, checkpoint, task)
    _require_finite(model, checkpoint, precision)
    model = model.to("cuda" if on_gpu else "cpu")
    if on_gpu:
        torch.backends.cuda.enable_cudnn_sdp(False)
    tail = embedding_tail(checkpoint)
    width = tail.width(int(model.config.hidden_size))
    dim = min(width, tail.dimensions or width)
    heads = {"classify": linear_head(Path(head), dim)} if head is not None else _own_heads(checkpoint, task, model)
    info = ModelInfo(
        name=name,
        revision=revision,
        dtype=precision,
        device=device_name() if on_gpu else "cpu",
        vocab_size=_vocab_size(model, checkpoint),
        max_tokens=_max_tokens(checkpoint, model),
        tasks=frozenset({*heads, *({EMBED} if checkpoint.embeds else ())}),
        dim=dim,
        labels=next((head.labels for head in heads.values()), ()),
        dimensions=matryoshka_dimensions(checkpoint, width),
        int8_ranges=None if int8_ranges is None else read_int8_ranges(Path(int8_ranges), dim),
        num_token_types=_num_token_types(model),
        padded=True,
    )
    tail, heads = on_device(tail, heads, model.device)
    engine = PaddedEngine(info, checkpoint.directory, model, tail, heads, threads)
    _try(engine)
    _require_neutral_types(model, checkpoint)
    return engine


def _own_heads(checkpoint: Checkpoint, task: str, model: Any) -> dict[str, Head]:
    if task == EMBED:
        return {}
    if task == RERANK:
        return {"rerank": logit_score(checkpoint, model.config.hidden_size)}
    return logit_heads(checkpoint, model.config.num_labels, of_tokens=task == TOKEN_CLASSIFY)


def _require_fixed(checkpoint: Checkpoint) -> None:
    """Raise UnsupportedCheckpoint for a model that transformers runs by what else is in its batch, or came before it.

    The trial cannot see that: it depends on lengths that a trial does not have.
    """
    config = checkpoint.config
    rope = setting(config, "rope_parameters", {}) or setting(config, "rope_scaling", {})
    each = [one for one in (rope, *rope.values()) if isinstance(one, dict)]
    scaling = {setting(one, key, "") for one in each for key in ("rope_type", "type")}
    moving = sorted(scaling & {"dynamic", "longrope", "su"})
    reason = f"the rope scaling {moving[0]!r} depends on the longest text of a batch" if moving else ""
    if config.get("model_type") == "big_bird" and setting(config, "attention_type", "block_sparse") == "block_sparse":
        reason = "block_sparse attention ends with the first short text; set attention_type to original_full"
    if reason:
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: {reason}, so a text would have several answers.")


def _require_one_end(model: Any, checkpoint: Checkpoint, task: str) -> None:
    """Raise UnsupportedCheckpoint for a classifier on an encoder-decoder whose end of text is not one token."""
    if task == CLASSIFY and model.config.is_encoder_decoder:
        end_token(checkpoint)


def _vocab_size(model: Any, checkpoint: Checkpoint) -> int:
    """Rows of the table of tokens. Raises UnsupportedCheckpoint for a model that has none."""
    try:
        return int(model.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError) as error:
        kind = type(model).__name__
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: a {kind} has no table of tokens to look up.") from error


@torch.inference_mode()
def _require_neutral_types(model: Any, checkpoint: Checkpoint) -> None:
    """Raise UnsupportedCheckpoint where token types that are all 0 change the results, and the tokenizer gives types.

    GPT-2 and a few others add the embedding of a word for the type, 0 too. Here a text of one type has no types.
    """
    if "token_type_ids" not in signature(model.forward).parameters or _num_token_types(model) is not None:
        return
    ids = torch.arange(3, 6, device=model.device)[None]
    try:
        plain, typed = (model.base_model(input_ids=ids, **more)[0] for more in ({}, {"token_type_ids": ids * 0}))
    except Exception as error:  # of any type: TAPAS, for one, takes seven types of each token
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: a {type(model).__name__} cannot be run with token types of one kind: {error!r}"
        ) from error
    if torch.allclose(plain, typed, rtol=1e-3, atol=1e-4):
        return
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
            checkpoint.directory, trust_remote_code=False, local_files_only=True
        )
    except Exception:  # of any type: no tokenizer, so that no text comes
        return
    if "token_type_ids" in tokenizer.model_input_names:
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: its tokenizer gives token types, and in a {type(model).__name__} the type 0 "
            "changes the result, which is not implemented. Leave token_type_ids out of model_input_names in "
            "tokenizer_config.json if the model was trained without them."
        )


def _num_token_types(model: Any) -> int | None:
    """Rows of the table of token types; None: the model takes no types, or does not state how many it has."""
    if "token_type_ids" not in signature(model.forward).parameters:
        return None
    return getattr(model.config, "type_vocab_size", None) or None


def _precision(dtype: str, model_type: str, *, on_gpu: bool) -> str:
    """The precision, as in the packed engine, with float32 on a GPU too. Raises UnsupportedDevice."""
    if not on_gpu:
        return cpu_precision(dtype)
    family = FAMILIES.get(model_type)
    is_wide = family.overflows_float16 if family is not None else model_type in _OVERFLOW_FLOAT16
    return dtype if dtype == "float32" else gpu_precision(dtype, overflows_float16=is_wide)


def _load(checkpoint: Checkpoint, task: str, dtype: torch.dtype) -> Any:
    """The transformers model, in eval mode on the CPU, with no weight missing from the checkpoint."""
    root = checkpoint.root
    model_type = checkpoint.config["model_type"]
    encoder = _ENCODER_OF_TWO if model_type in MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES else _ENCODER
    try:
        config: Any = transformers.AutoConfig.from_pretrained(root, trust_remote_code=False, local_files_only=True)
        config.return_dict = True  # its results are read by their names
        config._attn_implementation = None  # transformers' own choice: a name may stand for code on the hub
        model, report = _AUTO_CLASSES.get(task, encoder).from_pretrained(
            root,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # its error would not name them
        )
    except Exception as error:  # transformers raises a dozen unrelated types; each means the same here
        reason = str(error).strip().partition("\n")[0][:_MAX_REASON_CHARS]
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: transformers cannot load it: {reason}") from error
    # A checkpoint that was saved with another head has no pooler, which is not used.
    missing = sorted(name for name in report["missing_keys"] if task != EMBED or "pooler" not in name)
    if missing:
        raise CheckpointError(f"{root}: no tensors for {', '.join(missing[:5])}; {len(missing)} are missing.")
    if report["mismatched_keys"]:
        name, found, wanted = sorted(report["mismatched_keys"])[0]
        raise CheckpointError(
            f"{root}: tensor {name!r} has shape {tuple(found)}, but config.json implies {tuple(wanted)}."
        )
    require_no_layers(root, (name for name in report["unexpected_keys"] if not name.startswith("decoder.")))
    model.config.use_cache = False
    return model.eval()


def _require_finite(model: Any, checkpoint: Checkpoint, precision: str) -> None:
    """Raise CheckpointError for weights that hold NaN or infinity, and UnsupportedDevice where `precision` made it."""
    for name, tensor in model.named_parameters():
        if not bool(tensor.isfinite().all()):
            checkpoint.weights.require_finite()
            raise UnsupportedDevice(
                f"{checkpoint.root}: tensor {name!r} holds a value that overflows in {precision}. "
                f"{wider_than(precision)}"
            )


def _max_tokens(checkpoint: Checkpoint, model: Any) -> int:
    """Longest sequence: by the tables, less the rows that RoBERTa and others keep before position 0, or by config.json.

    Positions that are angles or distances go on beyond it.
    """
    stated = getattr(model.config, "max_position_embeddings", None) or getattr(model.config, "n_positions", None)
    positions = stated if isinstance(stated, int) and stated > 0 else None
    tables = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding)
    ]
    names = [name for name, _ in (*model.named_buffers(), *model.named_modules())]
    go_on = any(name.endswith(("inv_freq", "rel_embeddings")) for name in names)
    if go_on and positions is not None and not tables:
        return max_tokens_beyond(checkpoint, positions)
    return max_tokens_of(checkpoint, min([*tables, *filter(None, [positions])], default=None))


def _try(engine: PaddedEngine) -> None:
    """Run a short sequence alone and padded. Raises UnsupportedCheckpoint if padding changes its results.

    Some architectures pool, convolve or transform over padding; their results would depend on the batch.
    """
    info = engine.info
    lengths = min(9, info.max_tokens), min(_TRIAL_TOKENS, info.max_tokens)
    rng = np.random.default_rng(0)
    short, long = (rng.integers(0, info.vocab_size, length, dtype=np.int32) for length in lengths)
    for task in sorted(info.tasks):
        options = TaskOptions(task, pooling="max", normalize=False) if task == "embed" else TaskOptions(task)
        try:
            alone = engine.run(_batch([short], options)).rows[0]
            padded = engine.run(_batch([short, long], options)).rows[0]
        except EngineError:
            raise
        except Exception as error:  # any type, for inputs that the architecture does not expect
            raise UnsupportedCheckpoint(
                f"{engine.directory}: transformers has {info.name!r}, but cannot run it as a padded encoder: {error!r}"
            ) from error
        if not np.isfinite(alone).all():
            raise UnsupportedCheckpoint(
                f"{engine.directory}: the result of a text ({task}) holds NaN or infinity, though the weights do "
                f"not. If numbers overflow in {info.dtype}: {wider_than(info.dtype)}"
            )
        if alone.shape != padded.shape or np.abs(alone - padded).max() > _TOLERANCE[info.dtype] * np.abs(alone).max():
            raise UnsupportedCheckpoint(
                f"{engine.directory}: padding changes the results of this architecture, so batches of different "
                "lengths cannot be run."
            )


def _batch(sequences: list[Any], options: TaskOptions) -> PackedBatch:
    lengths = [len(sequence) for sequence in sequences]
    return PackedBatch(
        token_ids=np.concatenate(sequences),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        max_seqlen=max(lengths),
        token_type_ids=None,
        options=[options] * len(sequences),
    )
