"""NomicBERT (Nussbaum et al. 2024: nomic-embed-text): post-norm, rotary positions, SwiGLU, no biases in products."""

from penstock.engine.families.readers import read_classifier
from penstock.engine.families.rotary_encoder import RotaryFamily, RotaryNames, read_encoder
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import Dense, EncoderWeights

_PREFIXES = ("", "nomic_bert.")
_PUBLISHED = RotaryNames(
    embedding_norm="emb_ln",
    layers="encoder.layers",
    qkv=("attn.Wqkv",),
    attention=("attn.out_proj", "norm1"),
    up=("mlp.fc12", "mlp.fc11"),  # fc12 goes through the activation
    down="mlp.fc2",
    norm="norm2",
)
_FAMILY = RotaryFamily(
    prefixes=_PREFIXES,
    layouts=(_PUBLISHED, RotaryNames(up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj")),
    theta=1000.0,
    eps=1e-12,
    activation="silu",
    has_gate=True,
    biases=(False, False, False),
    max_tokens=2048,
)


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder, in the published layout, which transformers writes too, or in that of its classes."""
    return read_encoder(checkpoint, _FAMILY)


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """NomicBertForSequenceClassification: the tanh pooler, then the classifier."""
    prefix = checkpoint.weights.prefix(_PREFIXES, "pooler.dense.weight")
    return read_classifier(checkpoint.weights, prefix + "pooler.dense", "tanh", "classifier")
