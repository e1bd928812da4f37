"""modules.json of sentence-transformers: exact classes, their order, and what each of them reads and writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.model.files import Config, read_any_json, read_optional, require_regular_files, setting

# model_type of config_sentence_transformers.json
CROSS_ENCODER, SPARSE_ENCODER = "CrossEncoder", "SparseEncoder"
PYLATE, LATE_INTERACTION = "ColBERT", ("ColBERT", "MultiVectorEncoder")
LOGIT_SCORE = "LogitScore"  # the logit of one token, less that of another: of a model that predicts the next token
_PLACES = {  # class -> package of old and of new versions of sentence-transformers, and file
    "Transformer": ("", "base", "transformer"),
    "Pooling": ("", "sentence_transformer", "pooling"),
    "Dense": ("", "base", "dense"),
    "Normalize": ("", "base", "normalize"),
    "Dropout": ("", "sentence_transformer", "dropout"),
    "MLMTransformer": ("sparse_encoder.", "sparse_encoder", "mlm_transformer"),
    "SpladePooling": ("sparse_encoder.", "sparse_encoder", "splade_pooling"),
}
_LIBRARY = "sentence_transformers"
_OF_VECTORS = frozenset({"Pooling", "Dense", "Normalize", "Dropout"})  # modules of an embedding model
# The names under which the library's versions have saved a class, and version 6 finds it.
KINDS = {
    f"{_LIBRARY}.{path}": kind
    for kind, (old, package, file) in _PLACES.items()
    for path in (
        f"{old}models.{kind}",
        f"{old}models.{kind}.{kind}",
        f"{package}.modules.{kind}",
        f"{package}.modules.{file}.{kind}",
    )
} | {
    f"{_LIBRARY}.sentence_transformer.modules.normalize.Normalize": "Normalize",
    f"{_LIBRARY}.cross_encoder.modules.LogitScore": LOGIT_SCORE,
    f"{_LIBRARY}.cross_encoder.modules.logit_score.LogitScore": LOGIT_SCORE,
    f"{_LIBRARY}.multi_vector_encoder.modules.MultiVectorMask": "MultiVectorMask",
    f"{_LIBRARY}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask": "MultiVectorMask",
}
_PYLATE_DENSE = "pylate.models.Dense.Dense"  # in whose place version 6 runs its own Dense, in late interaction only
_REASONS = {  # part of a class's path -> why it is refused
    "sparse_encoder": "of sparse models only those that pool the logits of a masked language model (SPLADE) are run",
    "multi_vector": "token vectors that are pooled are not run",
}
_TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Without effect on hidden states, or of the tokenizer, which its loader reads.
_NOT_OF_THE_MODEL = frozenset({"max_seq_length", "do_lower_case", "unpad_inputs", "tokenizer_args", "processor_kwargs"})
_OF_ROLES = frozenset({"query_length", "document_length", "query_expansion"})  # which the tokenizer's loader reads
_TASKS = {  # transformer_task -> what a text's output is, and its name
    "feature-extraction": ("last_hidden_state", "token_embeddings"),
    "sequence-classification": ("logits", "scores"),
    "fill-mask": ("logits", "token_embeddings"),
    "text-generation": ("logits", "causal_logits"),
}


@dataclass(frozen=True, slots=True)
class Module:
    """One entry of modules.json."""

    kind: str  # the name of the class
    directory: Path


def read_modules(directory: Path) -> tuple[Module, ...]:
    """The modules in the order in which they run; empty for a directory without modules.json.

    Raises CheckpointError for a list that cannot be read, UnsupportedCheckpoint for one that is not implemented.
    """
    path = directory / "modules.json"
    if not path.exists():
        return ()
    entries = _read_entries(path)
    try:
        modules = tuple(Module(_kind(path, str(e["type"])), directory / e["path"]) for e in entries)
        is_inside = all(m.directory.resolve().is_relative_to(directory.resolve()) for m in modules)
        names = [e.get("name") for e in entries if "name" in e]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a sentence-transformers module list: {error!r}") from error
    if not is_inside:
        raise CheckpointError(f"{path} names a module outside the model's directory.")
    if len(set(map(str, names))) != len(names):
        raise CheckpointError(f"{path} gives two modules one name, and sentence-transformers would run only one.")
    for module in modules:
        try:
            is_there = module.directory.is_dir()
        except OSError as error:
            raise CheckpointError(f"{path} names a directory that cannot be opened: {error}") from error
        if is_there:
            require_regular_files(module.directory)
    return modules


def require_served(directory: Path, modules: tuple[Module, ...], saved: Config) -> None:
    """Raise UnsupportedCheckpoint unless sentence-transformers computes what is served here.

    modules: of `directory`, at least one. saved: its config_sentence_transformers.json.
    """
    path, kinds = directory / "modules.json", [module.kind for module in modules]
    if not kinds or kinds[0] not in ("Transformer", "MLMTransformer"):
        raise CheckpointError(f"{path} must begin with a Transformer module.")
    if saved.get("model_type") == SPARSE_ENCODER:
        _require_splade(modules, path, saved)
        return
    if kinds[0] != "Transformer":
        raise UnsupportedCheckpoint(f"{path}: a {kinds[0]} is run in a SparseEncoder only.")
    if saved.get("model_type") in LATE_INTERACTION:
        _require_late_interaction(modules, path, saved)
        return
    if saved.get("model_type") == CROSS_ENCODER:
        if kinds[1:] not in ([], [LOGIT_SCORE]):
            raise UnsupportedCheckpoint(f"{path}: a cross-encoder with a {kinds[1]} module is not implemented.")
        _require_transformer(modules[0].directory, "text-generation" if kinds[1:] else "sequence-classification")
        return
    _require_transformer(modules[0].directory, "feature-extraction")
    if "Pooling" not in kinds:
        raise UnsupportedCheckpoint(
            f"{path} has no Pooling module, so a text gets no vector; sentence-transformers cannot run it either. Add "
            "the Pooling that the model was trained with."
        )
    if kinds[1] != "Pooling" or kinds.count("Pooling") > 1 or not _OF_VECTORS.issuperset(kinds[1:]):
        raise UnsupportedCheckpoint(
            f"{path}: the modules are {', '.join(kinds)}. Here one Pooling comes right after the Transformer, then "
            "Dense, Normalize and Dropout."
        )
    for module in modules[2:]:
        _require_input(module, "sentence_embedding")


def _require_splade(modules: tuple[Module, ...], path: Path, saved: Config) -> None:
    """Raise UnsupportedCheckpoint unless a SparseEncoder pools the logits of a masked language model."""
    kinds = [module.kind for module in modules]
    if kinds[1:] != ["SpladePooling"]:
        raise UnsupportedCheckpoint(
            f"{path}: the modules are {', '.join(kinds)}. Of sparse models only those of a Transformer and a "
            "SpladePooling are run."
        )
    root = modules[0].directory
    if kinds[0] == "Transformer" and transformer_config(root).get("transformer_task") != "fill-mask":
        raise UnsupportedCheckpoint(f"{root}: SpladePooling pools the logits of transformer_task 'fill-mask' only.")
    _require_transformer(root, "fill-mask")
    if saved.get("max_active_dims") is not None:
        raise UnsupportedCheckpoint(
            f"{saved.path}: max_active_dims is not implemented. Remove it; a request may ask for the largest weights."
        )


def has_template(directory: Path) -> bool:
    """Whether a Transformer module puts each text, or pair, through the tokenizer's chat template."""
    return "message" in setting(transformer_config(directory), "modality_config", {})


def _require_late_interaction(modules: tuple[Module, ...], path: Path, saved: Config) -> None:
    """Raise UnsupportedCheckpoint unless each token's state goes through Dense modules, a mask and Normalize alone."""
    kinds = [module.kind for module in modules[1:]]
    of_dense = [kind for kind in kinds if kind.endswith("Dense")]
    others = sorted(kinds[len(of_dense) :])  # the mask and Normalize may come in either order
    own = [[]] if saved["model_type"] == PYLATE else [["MultiVectorMask"], ["MultiVectorMask", "Normalize"]]
    if kinds[: len(of_dense)] != of_dense or not of_dense or others not in own:
        raise UnsupportedCheckpoint(
            f"{path}: the modules after the Transformer are {', '.join(kinds)}. In late interaction Dense modules come "
            "there, then, unless PyLate saved them, MultiVectorMask and Normalize."
        )
    _require_transformer(modules[0].directory, "feature-extraction", known=_OF_ROLES)
    for module in modules[1:]:
        if module.kind != "MultiVectorMask":
            _require_input(module, "token_embeddings", is_default=module.kind != "Normalize")


def transformer_config(directory: Path) -> Config:
    """The options of a Transformer module: of the first of its files that says anything; empty without one."""
    return next(filter(None, (read_optional(directory / name) for name in _TRANSFORMER_CONFIGS)), Config())


def _read_entries(path: Path) -> list[Any]:
    try:
        entries = read_any_json(path)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is not a sentence-transformers module list: {error}") from error
    if not isinstance(entries, list):
        raise CheckpointError(f"{path} is not a sentence-transformers module list, but a {type(entries).__name__}.")
    return entries


def _kind(path: Path, name: str) -> str:
    """The class of a `type`, by its whole path. Raises UnsupportedCheckpoint."""
    if name in KINDS:
        return KINDS[name]
    if name == _PYLATE_DENSE:
        return "PyLateDense"
    reason = next((why for part, why in _REASONS.items() if part in name), None)
    if reason is None and not name.startswith(_LIBRARY + "."):
        reason = "code that is not of sentence-transformers is never run"
    raise UnsupportedCheckpoint(
        f"{path}: module {name!r} is not implemented{'' if reason is None else ': ' + reason}. "
        f"Supported, of sentence_transformers: {', '.join(sorted(set(KINDS.values())))}."
    )


def _require_transformer(directory: Path, task: str, known: frozenset[str] = frozenset()) -> None:
    """Raise UnsupportedCheckpoint for a Transformer module with options that change its results. known: others."""
    config, (output, output_name) = transformer_config(directory), _TASKS[task]
    if task == "text-generation" and config.get("transformer_task") != task:
        raise UnsupportedCheckpoint(f"{directory}: {LOGIT_SCORE} needs a Transformer with transformer_task {task!r}.")
    for key, value in config.items():
        match key:
            case "transformer_task":
                is_known = value == task
            case "module_output_name":
                is_known = value in (None, output_name)
            case "modality_config":
                is_known = value is None or _is_of_texts(value, output, has_template=task != "feature-extraction")
            case "processing_kwargs":
                is_known = not value or (task != "feature-extraction" and list(value) == ["chat_template"])
            case _:
                is_known = key in _NOT_OF_THE_MODEL | known or not value
        if not is_known:
            raise UnsupportedCheckpoint(f"{config.path}: {key} {value!r} is not implemented.")


def _is_of_texts(modalities: object, output: str, *, has_template: bool) -> bool:
    """Whether texts go through the model's `forward`; through a chat template before it only with `has_template`."""
    usual = {"method": "forward", "method_output_name": output}
    if not isinstance(modalities, dict) or modalities.get("text") != usual:
        return False
    message = modalities.get("message")
    if message is None:
        return True
    return has_template and message in ({**usual, "format": "flat"}, {**usual, "format": "structured"})


def _require_input(module: Module, name: str, *, is_default: bool = True) -> None:
    """Raise UnsupportedCheckpoint for a module that reads or writes anything but `name`, its default or not."""
    config = read_optional(module.directory / "config.json")
    reads = config.get("module_input_name") or (name if is_default else None)
    for key, value in (("module_input_name", reads), ("module_output_name", config.get("module_output_name") or reads)):
        if value != name:
            raise UnsupportedCheckpoint(
                f"{module.directory}: {module.kind} with {key} {value!r} is not implemented, only {name!r}."
            )
