"""One encoder, whatever its family called its tensors. All float32, as in the checkpoint."""

from dataclasses import dataclass

from torch import Tensor

from penstock.engine.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Dense:
    """y = activation(x @ weight.T + bias), on rows."""

    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]
    activation: str  # a key of activations.ACTIVATIONS, or "identity"


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm over the last dimension."""

    weight: Tensor  # [H]
    bias: Tensor  # [H]
    eps: float


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One post-norm transformer layer (Vaswani et al. 2017; Devlin et al. 2019)."""

    qkv: Dense  # [3H, H]: query, key and value rows in this order; heads contiguous within each
    attention_output: Dense  # [H, H]
    attention_norm: Norm
    up: Dense  # [I, H], with the MLP's activation
    down: Dense  # [H, I]
    output_norm: Norm


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """A BERT-family encoder. Row i of `positions` belongs to a sequence's i-th token, whatever the family's offset."""

    words: Tensor  # [V, H]
    positions: Tensor  # [max_tokens, H]
    token_types: Tensor | None  # [K, H]
    embedding_norm: Norm
    layers: tuple[LayerWeights, ...]
    num_heads: int

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise CheckpointError(
                f"config.json: {self.num_heads} attention heads do not divide a hidden size of {self.hidden_size}."
            )

    @property
    def hidden_size(self) -> int:
        return self.words.shape[1]
