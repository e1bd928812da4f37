"""Admission of a checkpoint: what it is, by its small files alone, before any weight is read.

Encoders (packed and padded), generation, `penstock check`, `parity` and workers pass through here. What is not known to
give the results of transformers or sentence-transformers is refused, with the reason and the way out, if there is one.
"""

from dataclasses import dataclass
from pathlib import Path

from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.model.adapter import has_adapter, require_mergeable
from penstock.engine.model.architectures import Architectures, architectures_of
from penstock.engine.model.files import Config, read_config, read_optional, require_regular_files, setting
from penstock.engine.model.module_list import (
    CROSS_ENCODER,
    LATE_INTERACTION,
    LOGIT_SCORE,
    SPARSE_ENCODER,
    Module,
    has_template,
    read_modules,
    require_served,
)
from penstock.engine.model.original_settings import in_own_names, original_settings

CAUSAL = "ForCausalLM"  # ends the names of classes that predict the next token, as sentence-transformers knows them
MASKED = "ForMaskedLM"  # of those that predict a token in its place
EMBED, CLASSIFY, TOKEN_CLASSIFY, GENERATE = "embed", "classify", "token_classify", "generate"
EMBED_SPARSE, EMBED_TOKENS, EMBED_ALL = "embed_sparse", "embed_tokens", "embed_all"
RERANK = "rerank"  # by the next token that is predicted
_SAVED = "config_sentence_transformers.json"
_WAYS_OUT = {  # of model types that transformers has under another name
    "new": " It has the model as 'gte': serve that form, such as alibaba-nlp-community/gte-multilingual-base.",
}
_QUANTISED = ("quantization_config", "compression_config")
_QUANTISED_FILES = ("quantize_config.json", "quant_config.json")
_STANFORD, _METADATA = "HF_ColBERT", "artifact.metadata"  # class and settings of ColBERT's own checkpoints


@dataclass(frozen=True, slots=True)
class Admission:
    """A checkpoint that may be loaded."""

    directory: Path
    config: Config  # config.json of the transformer, in the names of transformers' class
    modules: tuple[Module, ...]  # empty for a plain directory of transformers
    task: str  # EMBED or another of the above: by the class of the weights, or the modules
    # config_sentence_transformers.json; {}: there is none, or no modules.json, without which the library ignores it
    sentence_transformers: Config

    @property
    def has_template(self) -> bool:
        """Whether pairs of texts go through a chat template, so that the model is given nothing but such pairs."""
        return bool(self.modules) and has_template(self.root)

    @property
    def embeds(self) -> bool:
        """Whether a text has a vector, beside what else the model makes of it."""
        return self.task not in (EMBED_SPARSE, EMBED_TOKENS, GENERATE, RERANK) and not self.has_template

    @property
    def root(self) -> Path:
        """The directory of the transformer's config.json and weights."""
        return self.modules[0].directory if self.modules else self.directory


def admit(directory: Path) -> Admission:
    """Decide what a directory holds. Raises CheckpointError, UnsupportedCheckpoint."""
    require_regular_files(directory)
    saved = read_optional(directory / _SAVED)
    _require_known_model(directory, saved)
    modules = read_modules(directory)
    if (directory / "modules.json").exists():
        require_served(directory, modules, saved)
    root = modules[0].directory if modules else directory
    config = in_own_names(root, read_config(root))
    _require_plain_weights(root, config)
    known = _known(root, config)
    architecture = _architecture(root, config, has_modules=bool(modules))
    _require_native(root, config, architecture, known)
    if any(module.kind == LOGIT_SCORE for module in modules):
        task = _task_of_logit_score(root, architecture, known)
    elif modules and saved.get("model_type") in LATE_INTERACTION:
        _task_of_modules(root, None if architecture == _STANFORD else architecture, known)
        task = EMBED_TOKENS
    elif modules and saved.get("model_type") not in (CROSS_ENCODER, SPARSE_ENCODER):
        task = _task_of_modules(root, architecture, known)
    else:
        task = _task(root, architecture, str(config["model_type"]), known)
    if saved.get("model_type") == CROSS_ENCODER and task not in (CLASSIFY, RERANK):
        raise UnsupportedCheckpoint(f"{root}: a cross-encoder is a ...ForSequenceClassification, not a {architecture}.")
    if saved.get("model_type") == SPARSE_ENCODER and task != EMBED_SPARSE:
        raise UnsupportedCheckpoint(f"{root}: a sparse encoder is run as a ...{MASKED}, not as a {architecture}.")
    _require_plain_adapter(root, task)
    if not modules:
        _require_no_template(root, config, task)
        _require_late_interaction(directory, saved, task)
    return Admission(directory, config, modules, task, saved if modules else Config())


def _require_known_model(directory: Path, saved: Config) -> None:
    kind = saved.get("model_type", "SentenceTransformer")
    if kind not in ("SentenceTransformer", CROSS_ENCODER, SPARSE_ENCODER, *LATE_INTERACTION):
        raise UnsupportedCheckpoint(
            f"{directory}: a {kind} ({_SAVED}) is not implemented, only SentenceTransformer, CrossEncoder, "
            "SparseEncoder, MultiVectorEncoder and PyLate's ColBERT are."
        )


def _require_late_interaction(directory: Path, saved: Config, task: str) -> None:
    """Raise UnsupportedCheckpoint where sentence-transformers would add a projection of random values."""
    stated = [_METADATA] * (directory / _METADATA).exists() + [_SAVED] * (saved.get("model_type") in LATE_INTERACTION)
    if stated and task != EMBED_TOKENS:
        raise UnsupportedCheckpoint(
            f"{directory}: {stated[0]} is of ColBERT, whose projection is missing: there is no modules.json, and "
            f"config.json's `architectures` does not say {_STANFORD!r}."
        )


def _require_no_template(root: Path, config: Config, task: str) -> None:
    """Raise UnsupportedCheckpoint where sentence-transformers would put each text through a chat template."""
    is_reranker = task == CLASSIFY and (len(setting(config, "id2label", {})) == 1 or config.get("num_labels") == 1)
    if not (task in (EMBED, EMBED_SPARSE, EMBED_TOKENS) or is_reranker):
        return
    stated = read_optional(root / "tokenizer_config.json").get("chat_template")
    if stated or any((root / name).exists() for name in ("chat_template.jinja", "chat_template.json")):
        raise UnsupportedCheckpoint(
            f"{root}: it has a chat template and no modules.json. sentence-transformers then puts each text through "
            "the template, which is not implemented. Remove the template if the model was trained on plain texts. "
            "If it reranks by its template, save it as such: CrossEncoder(DIR).save_pretrained(OUT)."
        )


def _require_plain_weights(root: Path, config: Config) -> None:
    """Raise UnsupportedCheckpoint for weights that other weights or numbers are needed with."""
    stated = [key for key in _QUANTISED if config.get(key)]
    stated += [name for name in _QUANTISED_FILES if (root / name).exists()]
    if stated:
        raise UnsupportedCheckpoint(
            f"{root}: quantised weights ({stated[0]}) are not run. Serve the checkpoint that was quantised."
        )
    if config.get("adapters"):
        raise UnsupportedCheckpoint(f"{root}: adapters (config.json) are not loaded. Merge them into the model.")
    if config.get("transformers_weights"):
        raise UnsupportedCheckpoint(f"{root}: a name of the weights' file (transformers_weights) is not implemented.")
    if config.get("configuration_files"):
        raise UnsupportedCheckpoint(
            f"{root}: by configuration_files some versions of transformers read another file than config.json. Keep "
            "the right one, as config.json without that key."
        )


def _require_plain_adapter(root: Path, task: str) -> None:
    """Raise UnsupportedCheckpoint for an adapter that cannot be merged into the weights."""
    if not has_adapter(root):
        return
    if task == GENERATE:  # whose head may be the table of words, which is another module to an adapter
        raise UnsupportedCheckpoint(f"{root}: an adapter beside a model that generates is not implemented. Merge it.")
    require_mergeable(root)


def _known(root: Path, config: Config) -> Architectures:
    model_type = config.get("model_type")
    known = architectures_of(model_type) if isinstance(model_type, str) else None
    if known is not None:
        return known
    names = config.get("architectures") or ["unnamed architecture"]
    own_code = ", and the checkpoint's own code (auto_map) is never run" if config.get("auto_map") else ""
    raise UnsupportedCheckpoint(
        f"{root}: transformers does not implement model_type {model_type!r} ({', '.join(map(str, names))}){own_code}."
        f"{_WAYS_OUT.get(str(model_type), '')}"
    )


def _architecture(root: Path, config: Config, *, has_modules: bool) -> str | None:
    """The class that config.json names; None if it names none, and modules.json says what the weights are for."""
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{root / 'config.json'}: `architectures` must be a list of names.")
    if len(set(names)) > 1:
        raise UnsupportedCheckpoint(
            f"{root / 'config.json'}: `architectures` names {', '.join(names)}. Leave the one that the weights are of."
        )
    if not names and not has_modules:
        raise UnsupportedCheckpoint(
            f"{root / 'config.json'} names no class in `architectures`, so what the weights compute is not known. "
            'Add it, for example "architectures": ["BertForSequenceClassification"].'
        )
    return names[0] if names else None


def _task(root: Path, name: str | None, model_type: str, known: Architectures) -> str:
    """The task of a plain directory's class."""
    if name in known.encoders or (name in known.pretrained and str(name).endswith(CAUSAL)):
        return EMBED
    if name in known.classifiers:
        return CLASSIFY
    if name in known.token_classifiers:
        return TOKEN_CLASSIFY
    if name in known.pretrained and str(name).endswith(MASKED):
        return EMBED_SPARSE
    if name == _STANFORD and known.encoders:
        return EMBED_TOKENS
    if name in known.generators:
        return GENERATE
    raise UnsupportedCheckpoint(f"{root}: {_why_not(str(name), model_type, known)}")


def _task_of_modules(root: Path, name: str | None, known: Architectures) -> str:
    """Modules run on hidden states, below whatever head the weights have."""
    if not known.encoders:
        raise UnsupportedCheckpoint(f"{root}: transformers cannot run only the encoder of a {name}.")
    if name is not None and name not in known.all:
        raise UnsupportedCheckpoint(f"{root}: {_unknown(name, known.all)}")
    return EMBED


def _task_of_logit_score(root: Path, name: str | None, known: Architectures) -> str:
    if name not in known.pretrained or not str(name).endswith(CAUSAL):
        raise UnsupportedCheckpoint(f"{root}: {LOGIT_SCORE} needs a ...{CAUSAL}, and this is a {name}.")
    return RERANK


def _why_not(name: str, model_type: str, known: Architectures) -> str:
    if name.endswith((CAUSAL, "LMHeadModel")):
        return f"a {name} predicts the next token, which is not implemented."
    if name in known.pretrained:
        return (
            f"a {name} predicts masked tokens, which is not implemented. To serve the mean of its hidden states as "
            "vectors, save it as such: SentenceTransformer(DIR).save(OUT)."
        )
    if known.has_decoder and name.endswith(("ForSequenceClassification", "ForTokenClassification")):
        return (
            f"a classifier on an encoder-decoder ({name}) is not implemented, but for BART's and mBART's. Serve such "
            "a one, or a classifier on an encoder."
        )
    if known.has_decoder and not known.generators:
        alone = sorted(encoder for encoder in known.encoders if encoder.endswith("EncoderModel"))
        way_out = f" Its encoder is served if it is saved as {alone[0]}." if alone else ""
        return f"model_type {model_type!r} does not generate here ({name}).{way_out}"
    return _unknown(name, known.served)


def _unknown(name: str, supported: frozenset[str]) -> str:
    return f"architecture {name!r} is not implemented. Supported of its model_type: {', '.join(sorted(supported))}."


def _require_native(root: Path, config: Config, name: str | None, known: Architectures) -> None:
    """Raise UnsupportedCheckpoint where auto_map's code computes something that transformers itself does not."""
    if not config.get("auto_map"):
        return
    from transformers import AutoConfig, GenerationConfig  # slow to import, and few checkpoints have an auto_map

    native = AutoConfig.for_model(str(config["model_type"]))
    keys = {*dir(native), *native.attribute_map, *vars(GenerationConfig.from_dict({})), *_COMMON_KEYS}
    keys |= original_settings(config["model_type"])
    own = sorted(key for key, value in config.items() if key not in keys and value)
    what = f"a class of its own ({name})" if name is not None and name not in known.all else ""
    if own:
        what = f"settings that transformers does not know ({', '.join(own[:5])})"
    if what:
        raise UnsupportedCheckpoint(
            f"{root}: config.json's auto_map says that this model is computed by code of its own, which is never run: "
            f"it has {what}."
        )


_COMMON_KEYS = frozenset(
    {
        "_attn_implementation",
        "_name_or_path",
        "auto_map",
        "num_labels",
        "sbert_ce_default_activation_function",
        "sentence_transformers",
        "torch_dtype",
        "transformers_version",
    }
)
