"""The reference of a comparison: what sentence-transformers or transformers answers on the same directory.

It is chosen by the files that the two libraries themselves go by. Nothing here is read by code of `penstock.engine`:
its reading of the checkpoint is what a comparison tests.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers

from penstock.ops.parity.calls import Answer, Call
from penstock.producer.wire.messages import Text

_MANY = 1_000_000  # tokens: transformers' word for a tokenizer without a limit is larger
_GENERATES = ("ForConditionalGeneration", "MTModel")


class NoReferenceError(Exception):
    """Neither library has an answer that a task here has too, or the library is missing or refuses the directory."""


class Reference(Protocol):
    """One way to call one of the libraries. Answers are those to a text alone, which is cut at the model's limit."""

    name: str
    tokenizer: Any  # transformers'

    @property
    def calls(self) -> Sequence[Call]:
        """The calls that it answers."""
        ...

    @property
    def limit(self) -> int | None:
        """Tokens at which it cuts texts; None: nowhere."""
        ...

    def answer(self, call: Call, text: Text) -> Answer:
        """Raises what the library raises."""
        ...


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
            return [_CrossEncoder(directory, options, device)]
        if kind != "SentenceTransformer":
            raise NoReferenceError(f"{directory} is a {kind}, whose answers no task here has.")
        return [_SentenceTransformer(directory, options, device)]
    architecture = next(iter(_json(directory / "config.json").get("architectures") or ()), "")
    if architecture.endswith("ForSequenceClassification"):
        classifier, states = _Classifier(directory, options, device), _states_activation(directory)
        if classifier.num_labels == 1:
            return [classifier, _CrossEncoder(directory, options, device)]
        return [_CrossEncoder(directory, options, device) if states else classifier]
    if architecture.endswith("ForTokenClassification"):
        return [_Tagger(directory, options, device)]
    if architecture.endswith(_GENERATES):
        return [_Generator(directory, options, device)]
    if architecture and not architecture.endswith("Model"):
        raise NoReferenceError(
            f"{directory} is a {architecture}: neither encode, predict nor a pipeline answers what a task here answers."
        )
    return [_SentenceTransformer(directory, options, device)]


def _states_activation(directory: Path) -> bool:
    """Whether versions 3 to 5 of sentence-transformers saved a CrossEncoder here, without modules.json."""
    config = _json(directory / "config.json")
    own = config.get("sentence_transformers") or {}
    return bool(own.get("activation_fn") or config.get("sbert_ce_default_activation_function"))


class _SentenceTransformer:
    """`SentenceTransformer.encode`, with each prompt of the checkpoint, and cut to the shortest of its dimensions."""

    name = "SentenceTransformer.encode"

    def __init__(self, directory: Path, options: Mapping[str, Any], device: str) -> None:
        self._model = _sentence_transformers().SentenceTransformer(
            str(directory), device=device, model_kwargs=dict(options), trust_remote_code=False, local_files_only=True
        )
        self.tokenizer = self._model.tokenizer

    @property
    def calls(self) -> Sequence[Call]:
        """See `Reference`."""
        prompts = [name for name, prompt in self._model.prompts.items() if prompt]
        return [Call("embed"), *[Call("embed", name) for name in prompts]]

    @property
    def limit(self) -> int | None:
        """See `Reference`."""
        return _limit(self._model.max_seq_length)

    def answer(self, call: Call, text: Text) -> Answer:
        """See `Reference`."""
        more = {} if call.dimensions is None else {"truncate_dim": call.dimensions, "normalize_embeddings": True}
        vectors = self._model.encode([text], prompt_name=call.prompt_name, convert_to_tensor=True, **more)
        return vectors[0].float().cpu().numpy()  # type: ignore[no-any-return]  # untyped


class _CrossEncoder:
    """`CrossEncoder.predict`. Of several labels: by the activation of the checkpoint, else as the pipeline has it."""

    name = "CrossEncoder.predict"

    def __init__(self, directory: Path, options: Mapping[str, Any], device: str) -> None:
        self._model = _sentence_transformers().CrossEncoder(
            str(directory), device=device, model_kwargs=dict(options), trust_remote_code=False, local_files_only=True
        )
        self.tokenizer = self._model.tokenizer

    @property
    def calls(self) -> Sequence[Call]:
        """See `Reference`."""
        return [Call("rerank" if self._model.num_labels == 1 else "classify", of_pairs=True)]

    @property
    def limit(self) -> int | None:
        """See `Reference`."""
        return _limit(getattr(self._model, "max_seq_length", None) or self._model.max_length)

    def answer(self, call: Call, text: Text) -> Answer:
        """See `Reference`."""
        if self._model.num_labels == 1:
            return float(self._model.predict([text], convert_to_tensor=True)[0])
        config = self._model.model.config
        own, is_plain = self._model.activation_fn, isinstance(self._model.activation_fn, torch.nn.Identity)
        usual = {"multi_label_classification": torch.nn.Sigmoid(), "regression": torch.nn.Identity()}
        activation = usual.get(config.problem_type, torch.nn.Softmax(dim=-1)) if is_plain else own
        [scores] = self._model.predict([text], activation_fn=activation, convert_to_tensor=True).tolist()
        return {str(config.id2label[i]): score for i, score in enumerate(scores)}


class _Classifier:
    """The pipeline `text-classification`, of texts and of pairs."""

    name = "pipeline text-classification"

    def __init__(self, directory: Path, options: Mapping[str, Any], device: str) -> None:
        self._pipeline = _pipeline("text-classification", directory, options, device)
        self.tokenizer = self._pipeline.tokenizer

    @property
    def num_labels(self) -> int:
        return int(self._pipeline.model.config.num_labels)

    @property
    def calls(self) -> Sequence[Call]:
        """See `Reference`."""
        return [Call("classify"), Call("classify", of_pairs=True)]

    @property
    def limit(self) -> int | None:
        """See `Reference`."""
        return _limit(self.tokenizer.model_max_length)

    def answer(self, call: Call, text: Text) -> Answer:
        """See `Reference`."""
        asked = text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]}
        # A list: of a pair alone the pipeline returns the scores without a list around them.
        [scores] = self._pipeline([asked], top_k=None, truncation=True)
        return {str(one["label"]): float(one["score"]) for one in scores}


class _Tagger:
    """The pipeline `token-classification`, with the scores of all labels."""

    name = "pipeline token-classification"

    def __init__(self, directory: Path, options: Mapping[str, Any], device: str) -> None:
        self._pipeline = _pipeline(
            "token-classification", directory, options, device, pipeline_class=_all_scores(), ignore_labels=[]
        )
        self.tokenizer = self._pipeline.tokenizer

    @property
    def calls(self) -> Sequence[Call]:
        """See `Reference`."""
        return [Call("token_classify")]

    @property
    def limit(self) -> int | None:
        """See `Reference`."""
        return _limit(self.tokenizer.model_max_length)

    def answer(self, call: Call, text: Text) -> Answer:
        """See `Reference`."""
        labels = self._pipeline.model.config.id2label
        return [
            (
                int(token["start"]),
                int(token["end"]),
                {str(labels[i]): float(score) for i, score in enumerate(token["scores"])},
            )
            for token in self._pipeline(text)
            if token["start"] < token["end"]  # a reply has no token that covers no character, such as a lone blank
        ]


class _Generator:
    """`generate` of the Seq2Seq model, of texts that are not cut: its pipeline does not."""

    name = "generate"

    def __init__(self, directory: Path, options: Mapping[str, Any], device: str) -> None:
        auto: Any = transformers.AutoModelForSeq2SeqLM  # transformers leaves it untyped
        self._model = auto.from_pretrained(directory, **options, **_LOCAL).to(device).eval()
        self._device = device
        self.tokenizer = _tokenizer(directory)

    @property
    def calls(self) -> Sequence[Call]:
        """See `Reference`."""
        return [Call("generate")]

    @property
    def limit(self) -> int | None:
        """See `Reference`."""
        return None

    @torch.inference_mode()
    def answer(self, call: Call, text: Text) -> Answer:
        """See `Reference`. The ids do not hold the start token."""
        inputs = self.tokenizer(text, return_tensors="pt").to(self._device)
        inputs.pop("token_type_ids", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice about options, which are the checkpoint's
            [ids] = self._model.generate(**inputs).tolist()
        return tuple(ids[1:])


_LOCAL: Mapping[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def _pipeline(task: str, directory: Path, options: Mapping[str, Any], device: str, **more: Any) -> Any:
    auto: Any = {  # transformers leaves them untyped
        "text-classification": transformers.AutoModelForSequenceClassification,
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


def _sentence_transformers() -> Any:
    if find_spec("sentence_transformers") is None:
        raise NoReferenceError(
            "The reference of this checkpoint is sentence-transformers, which is not installed: "
            "pip install 'penstock[parity]'"
        )
    import sentence_transformers  # slow to import, and the pipelines of transformers need none

    return sentence_transformers


def _limit(stated: int | None) -> int | None:
    return None if stated is None or stated > _MANY else int(stated)


def _json(path: Path) -> Mapping[str, Any]:
    """The object in a file; empty where there is none."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}
