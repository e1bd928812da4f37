"""Classes of transformers that a model type has, by what they compute."""

from dataclasses import dataclass
from functools import cache
from typing import Any

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Architectures:
    """Names of one model type's classes, as `architectures` of config.json has them."""

    encoders: frozenset[str] = _NONE  # hidden states alone
    classifiers: frozenset[str] = _NONE  # a score a label for the sequence
    token_classifiers: frozenset[str] = _NONE
    generators: frozenset[str] = _NONE  # encoder-decoders that generate here
    pretrained: frozenset[str] = _NONE  # an encoder or decoder below a head that predicts tokens
    has_decoder: bool = False  # encoder-decoder

    @property
    def served(self) -> frozenset[str]:
        """Classes that a directory without modules.json may have."""
        return self.encoders | self.classifiers | self.token_classifiers | self.generators

    @property
    def all(self) -> frozenset[str]:
        """Classes that are served, and those whose encoder is served below modules."""
        return self.served | self.pretrained


def _of_encoder(prefix: str, *pretrained: str) -> Architectures:
    return Architectures(
        encoders=frozenset({f"{prefix}Model"}),
        classifiers=frozenset({f"{prefix}ForSequenceClassification"}),
        token_classifiers=frozenset({f"{prefix}ForTokenClassification"}),
        pretrained=frozenset(prefix + name for name in ("ForMaskedLM", *pretrained)),
    )


def _of_decoder(prefix: str) -> Architectures:
    return Architectures(
        encoders=frozenset({f"{prefix}Model"}),
        classifiers=frozenset({f"{prefix}ForSequenceClassification"}),
        token_classifiers=frozenset({f"{prefix}ForTokenClassification"}),
        pretrained=frozenset({f"{prefix}ForCausalLM"}),
    )


def _of_generator(generator: str, *encoders: str, classifier: str | None = None) -> Architectures:
    return Architectures(
        encoders=frozenset(encoders),
        classifiers=frozenset({classifier} if classifier else ()),
        generators=frozenset({generator}),
        has_decoder=True,
    )


# The families of the packed runtime: importing transformers takes seconds, which their workers do not spend.
_KNOWN = {
    "albert": _of_encoder("Albert", "ForPreTraining"),
    "bart": _of_generator("BartForConditionalGeneration", "BartModel", classifier="BartForSequenceClassification"),
    "bert": _of_encoder("Bert", "ForPreTraining"),
    "camembert": _of_encoder("Camembert"),
    "deberta-v2": _of_encoder("DebertaV2"),
    "distilbert": _of_encoder("DistilBert"),
    "electra": _of_encoder("Electra", "ForPreTraining"),
    "eurobert": _of_encoder("EuroBert"),
    "gemma3_text": Architectures(
        encoders=frozenset({"Gemma3TextModel"}),
        classifiers=frozenset({"Gemma3TextForSequenceClassification"}),
        pretrained=frozenset({"Gemma3ForCausalLM"}),
    ),
    "gte": _of_encoder("Gte"),
    "jina_embeddings_v3": _of_encoder("JinaEmbeddingsV3"),
    "llama": _of_decoder("Llama"),
    "m2m_100": _of_generator("M2M100ForConditionalGeneration"),
    "marian": _of_generator("MarianMTModel"),
    "mbart": _of_generator("MBartForConditionalGeneration", classifier="MBartForSequenceClassification"),
    "mistral": _of_decoder("Mistral"),
    "modernbert": _of_encoder("ModernBert"),
    "mpnet": _of_encoder("MPNet"),
    "mt5": _of_generator("MT5ForConditionalGeneration", "MT5Model", "MT5EncoderModel"),
    "nomic_bert": _of_encoder("NomicBert"),
    "pegasus": _of_generator("PegasusForConditionalGeneration"),
    "qwen2": _of_decoder("Qwen2"),
    "qwen3": _of_decoder("Qwen3"),
    "roberta": _of_encoder("Roberta"),
    "t5": _of_generator("T5ForConditionalGeneration", "T5Model", "T5EncoderModel"),
    "umt5": Architectures(encoders=frozenset({"UMT5Model", "UMT5EncoderModel"}), has_decoder=True),
    "xlm-roberta": _of_encoder("XLMRoberta"),
}


def architectures_of(model_type: str) -> Architectures | None:
    """The classes of a model type; None if transformers does not implement it."""
    return _KNOWN.get(model_type) or _of_transformers(model_type)


@cache
def _of_transformers(model_type: str) -> Architectures | None:
    from transformers.models.auto import modeling_auto as tables  # slow to import

    def names(table: Any) -> frozenset[str]:
        found = table.get(model_type, ())
        return frozenset({found} if isinstance(found, str) else found)

    models = names(tables.MODEL_MAPPING_NAMES)
    if not models:
        return None
    has_decoder = model_type in tables.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    alone = names(tables.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES)
    if has_decoder:  # its encoder is all that can be served
        return Architectures(encoders=models | alone if alone else _NONE, has_decoder=True)
    return Architectures(
        encoders=models | alone,
        classifiers=names(tables.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
        token_classifiers=names(tables.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES),
        pretrained=names(tables.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
        | names(tables.MODEL_FOR_PRETRAINING_MAPPING_NAMES)
        | names(tables.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    )
