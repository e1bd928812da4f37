"""LSTM models against nn.LSTM."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from penstock.engine.cells.cpu import CpuStepEngine
from penstock.engine.cells.errors import EmptySequence, InvalidSequence
from penstock.engine.cells.models.layers import weights_of
from penstock.engine.cells.models.lstm import lstm_classifier, lstm_language_model
from penstock.engine.cells.models.model import CellModel
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.model.checkpoint import read_tensors
from tests.engine.cells.loop import RandomLoop, run_all

VOCAB, WIDTH, END = 40, 12, 3
LENGTHS = (1, 2, 7, 8, 9, 30)


def modules(layers: int, outputs: int, seed: int = 0) -> dict[str, nn.Module]:
    torch.manual_seed(seed)
    return {
        "embedding": nn.Embedding(VOCAB, 8),
        "lstm": nn.LSTM(8, WIDTH, layers, batch_first=True),
        "output": nn.Linear(WIDTH, outputs),
    }


def sentences(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, VOCAB, length).tolist() for length in lengths]


@torch.no_grad()
def logits_of(parts: dict[str, nn.Module], texts: list[list[int]]) -> list[torch.Tensor]:
    """Logits after each token of each text, by nn.LSTM over a PackedSequence."""
    packed = pack_sequence([parts["embedding"](torch.tensor(text)) for text in texts], enforce_sorted=False)
    hidden, _ = pad_packed_sequence(parts["lstm"](packed)[0], batch_first=True)
    return [parts["output"](rows[: len(text)]) for rows, text in zip(hidden, texts, strict=True)]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_classifier_gives_the_scores_of_packed_nn_lstm(layers: int) -> None:
    parts, texts = modules(layers, outputs=5), sentences()
    results = run_all(lstm_classifier(weights_of(**parts)), [{"tokens": text} for text in texts])
    for logits, result in zip(logits_of(parts, texts), results, strict=True):
        np.testing.assert_allclose(result["scores"][0], logits[-1].softmax(0), atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_language_model_scores_each_token_as_nn_lstm_does(layers: int) -> None:
    parts, texts = modules(layers, outputs=VOCAB), sentences()[1:]
    model = lstm_language_model(weights_of(**parts), end_token=END)
    results = run_all(model, [{"tokens": text} for text in texts])
    for text, logits, result in zip(texts, logits_of(parts, texts), results, strict=True):
        expected = logits[:-1].log_softmax(1)[range(len(text) - 1), text[1:]]
        np.testing.assert_allclose(result["score"][:, 0], expected, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_language_model_continues_a_text_greedily_until_the_end_token(depth: int) -> None:
    parts, texts = modules(2, outputs=VOCAB), sentences()
    with torch.no_grad():  # near enough to the end token that some texts reach it, and others do not
        parts["output"].bias[END] += 0.18  # type: ignore[index, operator]
    model = lstm_language_model(weights_of(**parts), end_token=END)
    results = run_all(model, [{"tokens": text, "max_tokens": 5} for text in texts], depth=depth)
    lengths = set()
    for text, result in zip(texts, results, strict=True):
        expected = continued(parts, text, 5)
        assert result["token"][:, 0].tolist() == expected
        lengths.add(len(expected))
    assert 5 in lengths
    assert len(lengths) > 1


def continued(parts: dict[str, nn.Module], text: list[int], most: int) -> list[int]:
    """The continuation by running nn.LSTM over the whole text again for each token."""
    tokens: list[int] = []
    while len(tokens) < most and END not in tokens:
        (logits,) = logits_of(parts, [text + tokens])
        tokens.append(int(logits[-1].argmax()))
    return tokens


def test_half_precision_keeps_the_cell_state_in_float32() -> None:
    parts, texts = modules(2, outputs=5), sentences()
    model = lstm_classifier(weights_of(**parts), dtype=torch.bfloat16)
    dtypes = {state.name: state.dtype for state in model.specs[0].states}
    assert dtypes == {"h0": torch.bfloat16, "c0": torch.float32, "h1": torch.bfloat16, "c1": torch.float32}
    results = run_all(model, [{"tokens": text} for text in texts])
    for logits, result in zip(logits_of(parts, texts), results, strict=True):
        np.testing.assert_allclose(result["scores"][0], logits[-1].softmax(0), atol=0.02)


def test_weights_come_from_safetensors_too(tmp_path: Path) -> None:
    parts, texts = modules(1, outputs=5), sentences()
    named = {f"{part}.{name}": tensor for part, module in parts.items() for name, tensor in module.state_dict().items()}
    save_file(named, tmp_path / "model.safetensors")
    models = [lstm_classifier(read_tensors(tmp_path)), lstm_classifier(weights_of(**parts))]
    one, other = (run_all(model, [{"tokens": texts[2]}])[0] for model in models)
    np.testing.assert_array_equal(one["scores"], other["scores"])


def test_an_lstm_without_biases_runs() -> None:
    parts = modules(1, outputs=5) | {"lstm": nn.LSTM(8, WIDTH, bias=False, batch_first=True)}
    (result,) = run_all(lstm_classifier(weights_of(**parts)), [{"tokens": [1, 2]}])
    np.testing.assert_allclose(result["scores"][0], logits_of(parts, [[1, 2]])[0][-1].softmax(0), atol=1e-5)


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"proj_size": 4}])
def test_variants_of_nn_lstm_that_are_not_implemented_are_rejected(options: dict[str, int]) -> None:
    parts = modules(1, outputs=5) | {"lstm": nn.LSTM(8, WIDTH, **options)}
    with pytest.raises(UnsupportedCheckpoint, match="not implemented"):
        lstm_classifier(weights_of(**parts))


def test_a_tensor_of_another_shape_is_named() -> None:
    parts = modules(1, outputs=5) | {"output": nn.Linear(WIDTH + 1, 5)}
    with pytest.raises(CheckpointError, match=r"output\.weight"):
        lstm_classifier(weights_of(**parts))


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"tokens": []}, EmptySequence),
        ({"tokens": [1], "max_tokens": 0}, InvalidSequence),
        ({"tokens": [1], "max_tokens": True}, InvalidSequence),
        ({"tokens": [1]}, EmptySequence),
        ({"tokens": "text"}, InvalidSequence),
        ({"tokens": [[1], [2]]}, InvalidSequence),
        ({"tokens": [1.5]}, InvalidSequence),
        ({"tokens": [2**40, 1]}, InvalidSequence),
        ({"tokens": [-1, 1]}, InvalidSequence),
        ({"tokens": [1, VOCAB]}, InvalidSequence),
        ({}, InvalidSequence),
    ],
)
def test_a_request_at_fault_is_rejected_before_it_runs(request_: dict[str, object], error: type[Exception]) -> None:
    model = lstm_language_model(weights_of(**modules(1, outputs=VOCAB)), end_token=END)
    with pytest.raises(error):
        model.unfold(request_)


def test_a_chain_needs_one_slot_however_long_it_is() -> None:
    model: CellModel = lstm_classifier(weights_of(**modules(1, outputs=5)))
    loop = RandomLoop(model, num_slots=2, engine=CpuStepEngine(model.cells, 2))
    for id, text in enumerate(sentences()):
        loop.add(id, {"tokens": text})
    loop.run()
    assert len(loop.results) == len(LENGTHS)
