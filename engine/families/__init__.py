"""Readers of checkpoints, one file a family; config.json's model_type selects the family."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from penstock.engine.errors import NotPacked
from penstock.engine.families import (
    albert,
    bart,
    bert,
    deberta,
    decoder,
    distilbert,
    electra,
    eurobert,
    gemma3,
    gte,
    jina_v3,
    llama,
    mistral,
    modernbert,
    mpnet,
    nomic_bert,
    qwen,
    readers,
    roberta,
    t5,
)
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import Dense, EncoderWeights, Norm

Classifier = Callable[[Checkpoint], tuple[Dense | Norm, ...]]  # the layers from hidden states to logits


def _no_classifier(checkpoint: Checkpoint) -> tuple[Dense | Norm, ...]:
    raise RuntimeError(f"{checkpoint.directory}: a classifier without a reader was admitted. This is a bug.")


@dataclass(frozen=True, slots=True)
class Family:
    """Functions that read one family's checkpoints, and what holds for all of them."""

    encoder: Callable[[Checkpoint], EncoderWeights]
    classifier: Classifier = _no_classifier  # ...ForSequenceClassification: from pooled hidden states
    token_classifier: Classifier = readers.token_classifier  # ...ForTokenClassification: from each token's
    classifier_pooling: Callable[[Checkpoint], str] = readers.first_token  # what `classifier` reads: `Head.reads`
    masked_lm: Classifier | None = None  # ...ForMaskedLM: from each token's to a logit for each of the vocabulary
    logits: Callable[[Checkpoint], torch.Tensor] | None = None  # ...ForCausalLM: the matrix of its logits
    reads_causal: bool = False  # whether `encoder` reads config.json's is_causal
    pad_token: int | None = None  # where config.json has none
    overflows_float16: bool = False  # whether hidden states may: of families that are trained in bfloat16


_BERT = Family(bert.encoder, bert.classifier, masked_lm=bert.masked_lm)
_ROBERTA = Family(roberta.encoder, roberta.classifier, masked_lm=roberta.masked_lm)
_decoder = partial(
    Family,
    classifier=decoder.classifier,
    token_classifier=decoder.token_classifier,
    classifier_pooling=decoder.classifier_pooling,
    logits=decoder.logits_of,
    reads_causal=True,
)
_T5 = Family(t5.encoder, overflows_float16=True)

FAMILIES: dict[str, Family] = {
    "albert": Family(albert.encoder, albert.classifier),
    "bart": Family(bart.encoder, bart.classifier, classifier_pooling=bart.classifier_pooling),
    "bert": _BERT,
    "camembert": _ROBERTA,
    "deberta-v2": Family(deberta.encoder, deberta.classifier),  # and v3, which shares the name
    "distilbert": Family(distilbert.encoder, distilbert.classifier, masked_lm=distilbert.masked_lm),
    "electra": Family(electra.encoder, electra.classifier),
    "eurobert": Family(
        eurobert.encoder, eurobert.classifier, classifier_pooling=eurobert.classifier_pooling, reads_causal=True
    ),
    "gemma3_text": _decoder(gemma3.encoder, pad_token=0, overflows_float16=True),
    "gte": Family(gte.encoder, gte.classifier),
    "jina_embeddings_v3": Family(jina_v3.encoder, roberta.classifier),
    "llama": _decoder(llama.encoder),
    "mistral": _decoder(mistral.encoder),
    "modernbert": Family(
        modernbert.encoder,
        modernbert.classifier,
        modernbert.classifier,
        modernbert.classifier_pooling,
        modernbert.masked_lm,
    ),
    "mpnet": Family(mpnet.encoder, roberta.classifier, masked_lm=mpnet.masked_lm),
    "mt5": _T5,
    "nomic_bert": Family(nomic_bert.encoder, nomic_bert.classifier),
    "qwen2": _decoder(qwen.qwen2_encoder),
    "qwen3": _decoder(qwen.qwen3_encoder),
    "roberta": _ROBERTA,
    "t5": _T5,
    "umt5": _T5,
    "xlm-roberta": _ROBERTA,
}


def family_of(checkpoint: Checkpoint) -> Family:
    """The family of config.json's model_type. Raises NotPacked, naming it and what is supported."""
    model_type = checkpoint.config.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        architectures = ", ".join(checkpoint.config.get("architectures") or ["unnamed architecture"])
        raise NotPacked(
            f"{checkpoint.directory}: model_type {model_type!r} ({architectures}) is not implemented. "
            f"Supported model types: {', '.join(sorted(FAMILIES))}."
        )
    if checkpoint.config.get("per_layer_config"):
        raise NotPacked(f"{checkpoint.directory}: per_layer_config is not implemented.")
    if not family.reads_causal:
        readers.refuse_causal(checkpoint)
    return family
