"""The reference of a comparison: what sentence-transformers or transformers answers on the same directory.

It is chosen by the files that the two libraries themselves go by. Nothing here is read by code of `penstock.engine`:
its reading of the checkpoint is what a comparison tests.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

from penstock.ops.parity.calls import Answer, Call
from penstock.producer.wire.messages import Text

_MANY = 1_000_000  # tokens: transformers' word for a tokenizer without a limit is larger
_LABELS = ("a card that is late", "the weather", "caf\u00e9s")
_GENERATES = ("ForConditionalGeneration", "MTModel")


class NoReferenceError(Exception):
    """Neither library has an answer that a task here has too, or the library is missing or refuses the directory."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One way to call one of the libraries. Answers are those to a text alone, which is cut at the model's limit."""

    name: str
    tokenizer: Any  # transformers'
    calls: Sequence[Call]  # that it answers
    limit: int | None  # tokens at which it cuts texts; None: nowhere
    answer: Callable[[Call, Text], Answer]  # raises what the library raises


def references(directory: Path, dtype: torch.dtype, device: str) -> list[Reference]:
    """The references of a directory, loaded. device: as torch names it. Raises NoReferenceError."""
    try:
        return _references(directory, dtype, device)
    except NoReferenceError:
        raise
    except Exception as error:  # the libraries raise dozens of unrelated types
        raise NoReferenceError(f"The reference does not load {directory}: {type(error).__name__}: {error}") from error


def _references(directory: Path, dtype: torch.dtype, device: str) -> list[Reference]:
    options = {"dtype": dtype, "use_safetensors": True}
    if (directory / "modules.json").is_file():
        kind = _json(directory / "config_sentence_transformers.json").get("model_type", "SentenceTransformer")
        if kind == "CrossEncoder":
            return [_cross_encoder(directory, options, device), *_zero_shot(directory, options, device)]
        if kind in ("MultiVectorEncoder", "ColBERT"):
            return [_multi_vector_encoder(directory, options, device)]
        if kind not in ("SentenceTransformer", "SparseEncoder"):
            raise NoReferenceError(f"{directory} is a {kind}, which parity does not compare with.")
        return [_encoder(kind, directory, options, device)]
    architecture = next(iter(_json(directory / "config.json").get("architectures") or ()), "")
    if architecture.endswith("ForSequenceClassification"):
        found = transformers.AutoConfig.from_pretrained(directory, **_LOCAL)
        if found.num_labels == 1:
            return [_classifier(directory, options, device), _cross_encoder(directory, options, device)]
        own = _cross_encoder if _states_activation(directory) else _classifier
        return [own(directory, options, device), *_zero_shot(directory, options, device)]
    if architecture.endswith("ForTokenClassification"):
        return [_tagger(directory, options, device)]
    if architecture.endswith("ForMaskedLM"):
        return [_encoder("SparseEncoder", directory, options, device)]
    if architecture == "HF_ColBERT":
        return [_multi_vector_encoder(directory, options, device)]
    if architecture.endswith(_GENERATES):
        return [_generator(directory, options, device)]
    if architecture and not architecture.endswith(("Model", "ForCausalLM")):
        raise NoReferenceError(
            f"{directory} is a {architecture}: neither encode, predict nor a pipeline answers what a task here answers."
        )
    return [_encoder("SentenceTransformer", directory, options, device)]


def _states_activation(directory: Path) -> bool:
    """Whether versions 3 to 5 of sentence-transformers saved a CrossEncoder here, without modules.json."""
    config = _json(directory / "config.json")
    own = config.get("sentence_transformers") or {}
    return bool(own.get("activation_fn") or config.get("sbert_ce_default_activation_function"))


def _encoder(kind: str, directory: Path, options: Mapping[str, Any], device: str) -> Reference:
    """`encode` of SentenceTransformer or SparseEncoder, with each prompt of the checkpoint."""
    model = _loaded(kind, directory, options, device)
    is_sparse = kind == "SparseEncoder"
    task, more = ("embed_sparse", {"convert_to_sparse_tensor": False}) if is_sparse else ("embed", {})

    def answer(call: Call, text: Text) -> Answer:
        [vector] = model.encode([text], prompt_name=call.prompt_name, convert_to_tensor=True, **more).float().cpu()
        if is_sparse:
            return {str(token): float(vector[token]) for token in vector.nonzero()[:, 0].tolist()}
        return vector.numpy()  # type: ignore[no-any-return]  # untyped

    calls = [Call(task, name) for name in (None, *[name for name, prompt in model.prompts.items() if prompt])]
    return Reference(f"{kind}.encode", model.tokenizer, calls, _limit(model.max_seq_length), answer)


def _multi_vector_encoder(directory: Path, options: Mapping[str, Any], device: str) -> Reference:
    """`MultiVectorEncoder.encode_query` and `encode_document`."""
    model = _loaded("MultiVectorEncoder", directory, options, device)
    encode = {"query": model.encode_query, "document": model.encode_document}

    def answer(call: Call, text: Text) -> Answer:
        [vectors] = encode[call.prompt_name or ""]([text])
        return vectors.float().cpu().numpy()  # type: ignore[no-any-return]  # untyped

    stated = [length for length in (model.max_seq_length, model[0].document_length) if length is not None]
    limit = _limit(max(stated, default=None))
    name = "MultiVectorEncoder.encode_query and encode_document"
    return Reference(name, model.tokenizer, [Call("embed_tokens", role) for role in encode], limit, answer)


def _cross_encoder(directory: Path, options: Mapping[str, Any], device: str) -> Reference:
    """`CrossEncoder.predict`. Of several labels: by the activation of the checkpoint, else as the pipeline has it."""
    model = _loaded("CrossEncoder", directory, options, device)
    config = model.model.config
    usual = {"multi_label_classification": torch.nn.Sigmoid(), "regression": torch.nn.Identity()}
    is_plain = isinstance(model.activation_fn, torch.nn.Identity)
    activation = usual.get(config.problem_type, torch.nn.Softmax(dim=-1)) if is_plain else model.activation_fn

    def answer(call: Call, text: Text) -> Answer:
        if call.task == "rerank":
            return float(model.predict([text], convert_to_tensor=True)[0])
        [scores] = model.predict([text], activation_fn=activation, convert_to_tensor=True).tolist()
        return {str(config.id2label[i]): score for i, score in enumerate(scores)}

    calls = [Call("rerank" if model.num_labels == 1 else "classify", of_pairs=True)]
    limit = _limit(getattr(model, "max_seq_length", None) or model.max_length)
    return Reference("CrossEncoder.predict", model.tokenizer, calls, limit, answer)


def _classifier(directory: Path, options: Mapping[str, Any], device: str) -> Reference:
    """The pipeline `text-classification`, of texts and of pairs."""
    pipeline = _pipeline("text-classification", directory, options, device)

    def answer(call: Call, text: Text) -> Answer:
        asked = text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
        # A list: of a pair alone the pipeline returns the scores without a list around them.
        [scores] = pipeline([asked], top_k=None, truncation=True)
        return {str(one["label"]): float(one["score"]) for one in scores}

    calls = [Call("classify"), Call("classify", of_pairs=True)]
    limit = _limit(pipeline.tokenizer.model_max_length)
    return Reference("pipeline text-classification", pipeline.tokenizer, calls, limit, answer)


def _zero_shot(directory: Path, options: Mapping[str, Any], device: str) -> list[Reference]:
    """The pipeline `zero-shot-classification`, for a model of which it is certain what class is entailment."""
    auto: Any = transformers.AutoConfig
    config = auto.from_pretrained(directory, **_LOCAL)
    by_id = [index for index, name in config.id2label.items() if str(name).lower().startswith("entail")]
    by_name = [index for name, index in config.label2id.items() if str(name).lower().startswith("entail")]
    if len(by_id) != 1 or by_id != by_name or config.num_labels < 2:
        return []
    pipeline = _pipeline("zero-shot-classification", directory, options, device)

    def answer(call: Call, text: Text) -> Answer:
        found = pipeline(text, list(call.labels or ()), multi_label=call.multi_label)
        return dict(zip(found["labels"], found["scores"], strict=True))

    calls = [Call("classify", labels=_LABELS, multi_label=multi_label) for multi_label in (False, True)]
    limit = _limit(pipeline.tokenizer.model_max_length)
    return [Reference("pipeline zero-shot-classification", pipeline.tokenizer, calls, limit, answer)]


def _tagger(directory: Path, options: Mapping[str, Any], device: str) -> Reference:
    """The pipeline `token-classification`, with the scores of all labels."""
    own = {"pipeline_class": _all_scores(), "ignore_labels": []}
    pipeline = _pipeline("token-classification", directory, options, device, **own)
    labels = pipeline.model.config.id2label

    def answer(call: Call, text: Text) -> Answer:
        return [
            (
                int(one["start"]),
                int(one["end"]),
                {str(labels[i]): float(score) for i, score in enumerate(one["scores"])},
            )
            for one in pipeline(text)
            if one["start"] < one["end"]  # a reply has no token that covers no character, such as a lone blank
        ]

    limit = _limit(pipeline.tokenizer.model_max_length)
    return Reference("pipeline token-classification", pipeline.tokenizer, [Call("token_classify")], limit, answer)


def _generator(directory: Path, options: Mapping[str, Any], device: str) -> Reference:
    """`generate` of the Seq2Seq model, of texts that are not cut: its pipeline does not."""
    auto: Any = transformers.AutoModelForSeq2SeqLM  # transformers leaves it untyped
    model = auto.from_pretrained(directory, **options, **_LOCAL).to(device).eval()
    tokenizer = _tokenizer(directory)

    @torch.inference_mode()
    def answer(call: Call, text: Text) -> Answer:
        inputs = tokenizer(text, return_tensors="pt").to(device)
        inputs.pop("token_type_ids", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice about options, which are the checkpoint's
            [ids] = model.generate(**inputs).tolist()
        return tuple(ids[1:])  # without the start token

    return Reference("generate", tokenizer, [Call("generate")], None, answer)


_LOCAL: Mapping[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def _pipeline(task: str, directory: Path, options: Mapping[str, Any], device: str, **more: Any) -> Any:
    auto: Any = {  # transformers leaves them untyped
        "text-classification": transformers.AutoModelForSequenceClassification,
        "zero-shot-classification": transformers.AutoModelForSequenceClassification,
        "token-classification": transformers.AutoModelForTokenClassification,
    }[task]
    model = auto.from_pretrained(directory, **options, **_LOCAL).eval()
    make: Any = transformers.pipeline
    return make(task, model=model, tokenizer=_tokenizer(directory), device=device, **more)


def _tokenizer(directory: Path) -> Any:
    auto: Any = transformers.AutoTokenizer
    return auto.from_pretrained(directory, **_LOCAL)


def _all_scores() -> Any:
    """A token-classification pipeline that returns the scores of all labels, not those of the best alone."""
    base: Any = transformers.TokenClassificationPipeline

    def aggregate(self: Any, pre_entities: list[dict[str, Any]], aggregation_strategy: Any) -> list[dict[str, Any]]:
        return pre_entities

    return type("AllScores", (base,), {"aggregate": aggregate})


def _loaded(kind: str, directory: Path, options: Mapping[str, Any], device: str) -> Any:
    """A model of sentence-transformers' class `kind`."""
    if find_spec("sentence_transformers") is None:
        raise NoReferenceError(
            "The reference of this checkpoint is sentence-transformers, which is not installed: "
            "pip install 'penstock[parity]'"
        )
    import sentence_transformers  # slow to import, and the pipelines of transformers need none

    make = getattr(sentence_transformers, kind)
    return make(str(directory), device=device, model_kwargs=dict(options), **_LOCAL)


def _limit(stated: int | None) -> int | None:
    return None if stated is None or stated > _MANY else int(stated)


def _json(path: Path) -> Mapping[str, Any]:
    """The object in a file; empty where there is none."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}
