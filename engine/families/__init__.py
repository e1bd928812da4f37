"""Readers of checkpoints, one file a family; config.json's model_type selects the family."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.families import (
    albert,
    bert,
    deberta,
    distilbert,
    electra,
    gte,
    jina_v3,
    modernbert,
    mpnet,
    nomic_bert,
    readers,
    roberta,
)
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import Dense, EncoderWeights, Norm

Classifier = Callable[[Checkpoint], tuple[Dense | Norm, ...]]  # the layers from hidden states to logits


@dataclass(frozen=True, slots=True)
class Family:
    """Functions that read one family's checkpoints."""

    encoder: Callable[[Checkpoint], EncoderWeights]
    classifier: Classifier  # ...ForSequenceClassification: from the first token's hidden state
    token_classifier: Classifier = readers.token_classifier  # ...ForTokenClassification: from each token's


_BERT = Family(bert.encoder, bert.classifier)
_ROBERTA = Family(roberta.encoder, roberta.classifier)

FAMILIES: dict[str, Family] = {
    "albert": Family(albert.encoder, albert.classifier),
    "bert": _BERT,
    "camembert": _ROBERTA,
    "deberta-v2": Family(deberta.encoder, deberta.classifier),  # and v3, which shares the name
    "distilbert": Family(distilbert.encoder, distilbert.classifier),
    "electra": Family(electra.encoder, electra.classifier),
    "gte": Family(gte.encoder, gte.classifier),
    "jina_embeddings_v3": Family(jina_v3.encoder, roberta.classifier),
    "modernbert": Family(modernbert.encoder, modernbert.classifier, modernbert.classifier),
    "mpnet": Family(mpnet.encoder, roberta.classifier),
    "nomic_bert": Family(nomic_bert.encoder, nomic_bert.classifier),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}


def family_of(checkpoint: Checkpoint) -> Family:
    """The family of config.json's model_type. Raises UnsupportedCheckpoint, naming it and what is supported."""
    readers.refuse_causal(checkpoint)
    model_type = checkpoint.config.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        architectures = ", ".join(checkpoint.config.get("architectures") or ["unnamed architecture"])
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: model_type {model_type!r} ({architectures}) is not implemented. "
            f"Supported model types: {', '.join(sorted(FAMILIES))}."
        )
    return family
