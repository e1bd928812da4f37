"""from_torch: the same hidden states as the transformers model it was made from."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock.engine import PackedBatch, PackedModel, from_torch
from penstock.engine.errors import UnsupportedCheckpoint, UnsupportedDevice
from penstock.engine.model.weights import EncoderWeights
from tests.engine.helpers import (
    FAMILIES,
    MAX_TOKENS,
    VOCAB,
    config_of,
    random_sequences,
    randomise,
    reference_hidden,
    save_classifier,
    save_encoder,
)

pytestmark = pytest.mark.slow

LENGTHS = (5, 1, 129, 2, 40)
AUTO_MODEL: Any = transformers.AutoModel


def padded(lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [B, S] padded on the right with 0, and their mask."""
    ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, sequence in zip(ids, random_sequences(lengths), strict=True):
        row[: len(sequence)] = torch.from_numpy(sequence)
    return ids, (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


@pytest.fixture(scope="module")
def bert() -> tuple[Any, PackedModel]:
    model = AUTO_MODEL.from_config(config_of("bert")).eval()
    randomise(model)
    return model, from_torch(model, dtype="float32", device="cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_padded_and_packed_calls_equal_the_model(tmp_path: Path, family: str) -> None:
    model = save_encoder(tmp_path, family)
    fast, (ids, mask) = from_torch(model, dtype="float32", device="cpu"), padded(LENGTHS)
    hidden = fast(ids, mask)
    assert (hidden.shape, hidden.dtype) == ((len(LENGTHS), max(LENGTHS), 48), torch.float32)
    expected = [reference_hidden(model, sequence) for sequence in random_sequences(LENGTHS)]
    for row, want in zip(hidden.numpy(), expected, strict=True):
        np.testing.assert_allclose(row[: len(want)], want, atol=1e-5)
        assert not row[len(want) :].any()
    bounds = torch.tensor(np.cumsum([0, *LENGTHS]))
    packed = fast.packed(torch.from_numpy(np.concatenate(random_sequences(LENGTHS))), bounds)
    np.testing.assert_allclose(packed.numpy(), np.concatenate(expected), atol=1e-5)


def test_padded_calls_equal_the_models_own_padded_call(bert: tuple[Any, PackedModel]) -> None:
    model, fast = bert
    ids, mask = padded(LENGTHS)
    types = (torch.arange(ids.shape[1]) // 3 % 2).expand_as(ids)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state
    own = mask.bool()
    torch.testing.assert_close(fast(ids, mask, types)[own], expected[own], atol=1e-5, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(fast(ids[:, :9]), model(ids[:, :9]).last_hidden_state, atol=1e-5, rtol=0)


def test_a_model_with_a_head_gives_its_encoders_hidden_states(tmp_path: Path) -> None:
    model = save_classifier(tmp_path, "deberta-v2", num_labels=2)
    (ids, mask), fast = padded((7, 3)), from_torch(model, dtype="float32", device="cpu")
    np.testing.assert_allclose(
        fast(ids, mask)[0], reference_hidden(model.deberta, random_sequences((7, 3))[0]), atol=1e-5
    )


def test_half_precision_models_give_half_precision() -> None:
    model = AUTO_MODEL.from_config(config_of("bert")).eval()
    randomise(model)
    ids, mask = padded((7, 3))
    exact = from_torch(model, dtype="float32", device="cpu")(ids, mask)
    rounded = from_torch(model.bfloat16(), device="cpu")(ids, mask)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.1, rtol=0)


def test_a_later_change_of_the_model_is_not_seen() -> None:
    model = AUTO_MODEL.from_config(config_of("bert")).eval()
    fast, (ids, mask) = from_torch(model, dtype="float32", device="cpu"), padded((7, 3))
    before = fast(ids, mask)
    randomise(model)
    assert torch.equal(fast(ids, mask), before)


def test_threads_get_what_one_alone_gets(bert: tuple[Any, PackedModel]) -> None:
    calls = [padded(tuple(range(1, 2 + 5 * n))) for n in range(8)]
    alone = [bert[1](*call) for call in calls]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda call: bert[1](*call), calls))
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)


class OneWorkspace:
    """A GPU's encoder in this: each batch is written where the one before was, not at once, and nothing locks."""

    def __init__(self, weights: EncoderWeights, dtype: torch.dtype, int8_plan: None) -> None:
        self._memory = torch.empty(1, weights.hidden_size, dtype=dtype)

    def run(self, batch: PackedBatch) -> torch.Tensor:
        for column in range(self._memory.shape[1]):
            self._memory[:, column] = float(batch.token_ids[0])
        return self._memory


def test_threads_take_turns_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.packed_model.choose_device_for", lambda weights, wanted: "cuda")
    monkeypatch.setattr("penstock.engine.gpu.GpuEncoder", OneWorkspace)
    fast, bounds = from_torch(AUTO_MODEL.from_config(config_of("bert"))), torch.tensor([0, 1])

    def call(token: int) -> bool:
        return bool((fast.packed(torch.tensor([token]), bounds) == token).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, list(range(VOCAB)) * 5))


def test_rows_without_tokens_are_zero(bert: tuple[Any, PackedModel]) -> None:
    ids, mask = padded((4, 6))
    mask[0] = 0
    hidden = bert[1](ids, mask)
    assert not hidden[0].any()
    torch.testing.assert_close(hidden[1:], bert[1](ids[1:], mask[1:]), atol=2e-6, rtol=0)
    assert not bert[1](ids, torch.zeros_like(ids)).any()


def test_padding_on_the_left_is_refused_with_the_remedy(bert: tuple[Any, PackedModel]) -> None:
    ids, mask = padded((4, 6))
    with pytest.raises(ValueError, match="Pad on the right"):
        bert[1](ids, mask.flip(1))


@pytest.mark.parametrize(
    ("ids", "bounds", "types", "words"),
    [
        ([2, VOCAB], [0, 2], None, r"token ids must lie in \[0, 120\)"),
        ([2, -1], [0, 2], None, "found -1"),
        ([2, 2**32], [0, 2], None, "to 4294967296"),
        ([2, 3], [0, 2], [0, 2], r"token_type_ids must lie in \[0, 2\)"),
        ([2, 3], [0, 1], None, "must increase from 0 to 2"),
        ([2, 3], [0, 0, 2], None, "must increase"),
        ([2, 3], [0], None, "must increase"),
        ([2] * (MAX_TOKENS + 1), [0, MAX_TOKENS + 1], None, "has 131 tokens; the model takes 130"),
    ],
)
def test_what_the_model_cannot_take_is_refused(
    bert: tuple[Any, PackedModel], ids: list[int], bounds: list[int], types: list[int] | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        bert[1].packed(torch.tensor(ids), torch.tensor(bounds), None if types is None else torch.tensor(types))


def test_unknown_models_and_devices_are_named(bert: tuple[Any, PackedModel]) -> None:
    gpt: Any = transformers.GPT2Model(transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=20))
    with pytest.raises(UnsupportedCheckpoint, match=r"GPT2Model: model_type 'gpt2'.*modernbert"):
        from_torch(gpt)
    with pytest.raises(UnsupportedDevice, match="'abacus'"):
        from_torch(bert[0], device="abacus")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_default_device_of_the_caller_changes_nothing(tmp_path: Path, family: str) -> None:
    model = save_encoder(tmp_path, family)
    ids, mask = padded(LENGTHS)
    expected = from_torch(model, dtype="float32", device="cpu")(ids, mask)
    with torch.device("meta"):  # where every tensor that names no device has no values
        found = from_torch(model, dtype="float32", device="cpu")(ids, mask)
    assert torch.equal(found, expected)
