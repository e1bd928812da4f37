"""The sequence-to-sequence model against a loop of nn.LSTMCell."""

import numpy as np
import pytest
import torch
from torch import nn

from penstock.engine.cells.errors import InvalidCell
from penstock.engine.cells.models.layers import weights_of
from penstock.engine.cells.models.lstm import lstm_seq2seq
from penstock.engine.cells.models.model import CellModel
from tests.engine.cells.loop import run_all

SOURCE, TARGET, WIDTH, START, END = 30, 25, 10, 1, 2
Parts = dict[str, nn.Module]


def modules(layers: int = 1, decoder_layers: int | None = None) -> Parts:
    torch.manual_seed(3)
    parts: Parts = {
        "encoder_embedding": nn.Embedding(SOURCE, 6),
        "encoder": nn.LSTM(6, WIDTH, layers),
        "decoder_embedding": nn.Embedding(TARGET, 7),
        "decoder": nn.LSTM(7, WIDTH, decoder_layers or layers),
        "output": nn.Linear(WIDTH, TARGET),
    }
    with torch.no_grad():  # near enough to the end token that some outputs reach it
        parts["output"].bias[END] += 0.15  # type: ignore[index, operator]
    return parts


def model_of(parts: Parts) -> CellModel:
    return lstm_seq2seq(weights_of(**parts), start_token=START, end_token=END)


def cells_of(lstm: nn.Module, layer: int) -> nn.LSTMCell:
    """The nn.LSTMCell of a layer of nn.LSTM."""
    weights = {
        name.removesuffix(f"_l{layer}"): w for name, w in lstm.state_dict().items() if name.endswith(f"_l{layer}")
    }
    cell = nn.LSTMCell(weights["weight_ih"].shape[1], WIDTH)
    cell.load_state_dict(weights)
    return cell


@torch.no_grad()
def translated(parts: Parts, tokens: list[int], most: int) -> list[int]:
    layers: int = parts["encoder"].num_layers  # type: ignore[assignment]
    states = [(torch.zeros(1, WIDTH), torch.zeros(1, WIDTH)) for _ in range(layers)]

    def step(side: str, token: int) -> torch.Tensor:
        x: torch.Tensor = parts[f"{side}_embedding"](torch.tensor([token]))
        for layer in range(layers):
            states[layer] = cells_of(parts[side], layer)(x, states[layer])
            x = states[layer][0]
        return x

    for token in tokens:
        step("encoder", token)
    output: list[int] = [START]
    while len(output) <= most and END not in output:
        output.append(int(parts["output"](step("decoder", output[-1])).argmax()))
    return output[1:]


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("depth", [1, 2])
def test_the_decoder_emits_what_a_loop_with_feedback_emits(layers: int, depth: int) -> None:
    parts = modules(layers)
    random = np.random.default_rng(0)
    texts = [random.integers(0, SOURCE, length).tolist() for length in (1, 3, 8, 17, 4, 5, 9, 2)]
    requests = [{"tokens": text, "max_tokens": 12} for text in texts]
    results = [result["token"][:, 0].tolist() for result in run_all(model_of(parts), requests, depth=depth)]
    assert results == [translated(parts, text, 12) for text in texts]


def test_a_decoder_that_never_stops_ends_after_max_tokens() -> None:
    parts = modules()
    with torch.no_grad():
        parts["output"].bias[END] = -1e9  # type: ignore[operator]
    (result,) = run_all(model_of(parts), [{"tokens": [1, 2], "max_tokens": 50}])
    assert len(result["token"]) == 50


def test_the_decoder_runs_first() -> None:
    model = model_of(modules())
    encoder, decoder = (model.specs[model.types[name]] for name in ("encode", "decode"))
    assert decoder.priority > encoder.priority


def test_a_decoder_of_another_shape_than_the_encoder_is_rejected() -> None:
    with pytest.raises(InvalidCell, match="must be equal"):
        model_of(modules(layers=1, decoder_layers=2))
