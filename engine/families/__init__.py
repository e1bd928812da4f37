"""One file a family: where a checkpoint keeps its tensors. config.json's model_type chooses."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.engine.checkpoint import Checkpoint
from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.families import bert, distilbert, roberta
from penstock.engine.weights import Dense, EncoderWeights


@dataclass(frozen=True, slots=True)
class Family:
    """How to read one family's checkpoints."""

    encoder: Callable[[Checkpoint], EncoderWeights]
    classifier: Callable[
        [Checkpoint], tuple[Dense, ...]
    ]  # the layers from the first token's hidden state to the logits


_BERT = Family(bert.encoder, bert.classifier)
_ROBERTA = Family(roberta.encoder, roberta.classifier)
_DISTILBERT = Family(distilbert.encoder, distilbert.classifier)

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": _DISTILBERT,
}


def family_of(checkpoint: Checkpoint) -> Family:
    """The family of config.json's model_type. Raises UnsupportedCheckpoint, naming it and what is supported."""
    model_type = checkpoint.config.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        architectures = ", ".join(checkpoint.config.get("architectures") or ["unnamed architecture"])
        raise UnsupportedCheckpoint(
            f"{checkpoint.directory}: model_type {model_type!r} ({architectures}) is not implemented. "
            f"Supported model types: {', '.join(sorted(FAMILIES))}."
        )
    return family
