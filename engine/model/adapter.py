"""A LoRA adapter (Hu et al. 2022), as PEFT saves it, beside the files of its model: it is merged into the weights.

So transformers loads such a directory where PEFT is installed. Both files of the adapter are part of the revision.
"""

import math
import re
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from torch import Tensor, bfloat16, float16, float32

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.model.files import ADAPTER, Config, read_json, read_safetensors, require_int, setting

_WEIGHTS = "adapter_model.safetensors"
_READ = frozenset({"peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias", "init_lora_weights"})
# Of training, or of variants that a key beside them turns on.
_WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "inference_mode",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    }
)
_INITIAL = (True, False, None, "gaussian")  # others change the model's own weights
_TENSOR = re.compile(r"base_model\.model\.(.+)\.(lora_[AB]\.weight|lora_embedding_[AB])")
_LINEAR, _EMBEDDING = ("lora_A.weight", "lora_B.weight"), ("lora_embedding_A", "lora_embedding_B")
_SHARED = "shared"  # of encoder-decoders, whose stacks look words up under names of their own
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_LAYER = re.compile(r"(?:^|.*\.)layers\.(\d+)\.(.+)")
# The published names of layers and, for the modules that transformers makes of them, of their weights: see the layouts
# of engine.families. Several modules of one weight are its equal parts, in this order.
_PUBLISHED: tuple[tuple[str, Mapping[tuple[str, ...], str]], ...] = (
    ("encoder.layers", {_QKV: "mixer.Wqkv", ("self_attn.o_proj",): "mixer.out_proj"}),  # jina-embeddings-v3
    (  # NomicBERT
        "encoder.layers",
        {
            _QKV: "attn.Wqkv",
            ("self_attn.o_proj",): "attn.out_proj",
            ("mlp.gate_proj",): "mlp.fc12",
            ("mlp.up_proj",): "mlp.fc11",
            ("mlp.down_proj",): "mlp.fc2",
        },
    ),
    (  # GTE
        "encoder.layer",
        {
            _QKV: "attention.qkv_proj",
            ("self_attn.o_proj",): "attention.o_proj",
            ("mlp.up_proj", "mlp.gate_proj"): "mlp.up_gate_proj",
            ("mlp.down_proj",): "mlp.down_proj",
        },
    ),
)


def has_adapter(directory: Path) -> bool:
    """Whether an adapter lies in a transformer's directory."""
    return (directory / ADAPTER).exists()


def require_mergeable(directory: Path) -> None:
    """Raise UnsupportedCheckpoint, with the key's name, for an adapter that is more than W + scale * B A."""
    config = read_json(directory / ADAPTER)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedCheckpoint(f"{directory}: an adapter of peft_type {kind!r} is not implemented. {_WAY_OUT}")
    refused = [key for key, value in config.items() if key not in _READ | _WITHOUT_EFFECT and value]
    refused += ["bias"] if config.get("bias") not in (None, "none") else []
    refused += ["init_lora_weights"] if config.get("init_lora_weights") not in _INITIAL else []
    targets = config.get("target_modules")
    if targets != "all-linear" and not (isinstance(targets, list) and all(isinstance(one, str) for one in targets)):
        refused += ["target_modules"]
    if refused:
        what = ", ".join(f"{key} of {config.get(key)!r}" for key in sorted(refused)[:3])
        raise UnsupportedCheckpoint(f"{directory}: an adapter with {what} is not implemented. {_WAY_OUT}")


_WAY_OUT = "Merge it into its model and save that: model.merge_and_unload().save_pretrained(OUT)."


def merge_adapter(directory: Path, tensors: MutableMapping[str, Tensor], *, has_tied_head: bool) -> None:
    """Add the adapter of a directory to the tensors of its model, in float32. Called after `require_mergeable`.

    has_tied_head: whether the table of words is the matrix of the logits too, which PEFT leaves as it was.
    Raises CheckpointError, UnsupportedCheckpoint.
    """
    config = read_json(directory / ADAPTER)
    rank = require_int(config, "r", 8)
    scale = setting(config, "lora_alpha", 8.0) / (math.sqrt(rank) if setting(config, "use_rslora", False) else rank)
    for module, halves in _read_halves(directory, config, rank).items():
        if _LINEAR[0] not in halves and (has_tied_head or module.rpartition(".")[2] == _SHARED):
            raise UnsupportedCheckpoint(
                f"{directory}: the adapter changes the table of words ({module}) where it is looked up, but not where "
                "the model has it under another name. Merge it, and save the model with its tables untied."
            )
        name, part, parts = _weight_of(directory, module, tensors)
        weight = tensors[name].float().clone()
        rows, delta = weight.chunk(parts)[part], _product(halves)
        if delta.shape != rows.shape:
            raise CheckpointError(
                f"{directory}: the adapter's {module} is of a matrix {tuple(delta.shape)}, and {name!r} has "
                f"{tuple(rows.shape)}."
            )
        rows += scale * delta
        tensors[name] = weight


def _read_halves(directory: Path, config: Config, rank: int) -> dict[str, dict[str, Tensor]]:
    """The tensors of each module that the adapter changes, two each."""
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_safetensors(directory / _WEIGHTS)[0].items():
        match = _TENSOR.fullmatch(name)
        if match is None or tensor.ndim != 2 or tensor.dtype not in (float32, float16, bfloat16):
            raise UnsupportedCheckpoint(f"{directory / _WEIGHTS}: tensor {name!r} is not implemented. {_WAY_OUT}")
        module, half = match.groups()
        modules.setdefault(module, {})[half] = tensor.float()
    targets = config["target_modules"]
    for module, halves in modules.items():
        if tuple(sorted(halves)) not in (_LINEAR, _EMBEDDING):
            raise CheckpointError(f"{directory / _WEIGHTS}: {module} has {', '.join(sorted(halves))}, not two halves.")
        first, second = (halves[name] for name in sorted(halves))
        if (len(first), second.shape[1]) != (rank, rank):
            raise CheckpointError(f"{directory / _WEIGHTS}: {module} is not of the rank {rank} that {ADAPTER} states.")
        if targets != "all-linear" and not any(f".{module}".endswith(f".{target}") for target in targets):
            raise UnsupportedCheckpoint(
                f"{directory / _WEIGHTS}: {module} is not among the target_modules of {ADAPTER}: PEFT ignores it."
            )
    return modules


def _product(halves: dict[str, Tensor]) -> Tensor:
    """B A; of a table of embeddings its transpose, whose rows are the words'."""
    first, second = (halves[name] for name in sorted(halves))
    return second @ first if _LINEAR[0] in halves else (second @ first).T


def _weight_of(directory: Path, module: str, tensors: MutableMapping[str, Tensor]) -> tuple[str, int, int]:
    """The tensor that a module multiplies by, and which of how many equal parts of it.

    Names of an adapter and of its model may differ by the prefix of either's class.
    """
    places = [(f"{module}.weight", 0, 1), *_published(module)]
    for wanted, part, parts in places:
        found = [name for name in tensors if f".{name}".endswith(f".{wanted}") or f".{wanted}".endswith(f".{name}")]
        if len(found) == 1:
            return found[0], part, parts
    raise CheckpointError(
        f"{directory}: the adapter changes {module}, and the model has no weight of that name alone. {_WAY_OUT}"
    )


def _published(module: str) -> Iterator[tuple[str, int, int]]:
    """The published names that the weight of a module may have, and which of how many equal parts of it."""
    if (found := _LAYER.fullmatch(module)) is None:
        return
    index, own = found.groups()
    for layers, names in _PUBLISHED:
        for modules, published in names.items():
            if own in modules:
                yield f"{layers}.{index}.{published}.weight", modules.index(own), len(modules)
