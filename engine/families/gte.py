"""GTE (Zhang et al. 2024: gte-multilingual-base, snowflake-arctic-embed-m-v2.0): post-norm, rotary positions, GeGLU."""

from penstock.engine.families.readers import read_classifier
from penstock.engine.families.rotary_encoder import RotaryFamily, RotaryNames, read_encoder
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import setting
from penstock.engine.model.weights import Dense, EncoderWeights

_PREFIXES = ("", "gte.", "new.")
_PUBLISHED = RotaryNames(
    layers="encoder.layer",
    qkv=("attention.qkv_proj",),
    attention=("attention.o_proj", "attn_ln"),
    up=("mlp.up_gate_proj",),
    down="mlp.down_proj",
    norm="mlp_ln",
)
_FAMILY = RotaryFamily(
    prefixes=_PREFIXES,
    layouts=(_PUBLISHED, RotaryNames(up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj")),
    theta=160_000.0,
    eps=1e-12,
    activation="gelu",
    has_gate=True,
    biases=(True, False, True),
    max_tokens=8192,
)


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder, in the published layout, which transformers writes too, or in that of its classes."""
    return read_encoder(checkpoint, _FAMILY, has_types=setting(checkpoint.config, "type_vocab_size", 1) != 0)


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """GteForSequenceClassification: the tanh pooler, then the classifier."""
    prefix = checkpoint.weights.prefix(_PREFIXES, "pooler.dense.weight")
    return read_classifier(checkpoint.weights, prefix + "pooler.dense", "tanh", "classifier")
