"""The padded engine: against the packed one and transformers, in batches, and the checkpoints it refuses."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from structlog.testing import capture_logs

from penstock.engine import TaskOptions, load_engine
from penstock.engine.cpu.engine import CpuEngine
from penstock.engine.errors import CheckpointError, InvalidBatch, UnsupportedCheckpoint, UnsupportedDevice
from penstock.engine.padded.engine import PaddedEngine, passes
from tests.engine.helpers import (
    FAMILIES,
    MAX_TOKENS,
    PAD,
    SIZE,
    VOCAB,
    cpu_engine,
    edit_json,
    needs_bfloat16,
    pack,
    random_sequences,
    randomise,
    reference_hidden,
    save_classifier,
    save_encoder,
    save_tagger,
    write_json,
)
from tests.examples import examples

pytestmark = pytest.mark.slow

POOLINGS = ("cls", "mean", "max", "last")
LENGTHS = (1, 12, 127, 2, 128, 12, 130)
_AUTO_MODEL: Any = transformers.AutoModel  # transformers leaves from_config untyped
_AUTO_CLASSIFIER: Any = transformers.AutoModelForSequenceClassification
_ROFORMER: Any = transformers.RoFormerConfig  # whose class takes more than its signature says

UNKNOWN: dict[str, Callable[[], Any]] = {  # to the packed runtime
    "roformer": lambda: _ROFORMER(**SIZE, embedding_size=48),
    "deberta": lambda: transformers.DebertaConfig(**SIZE),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=4, n_positions=MAX_TOKENS),
}
CHANGED_BY_PADDING: dict[str, Callable[[], Any]] = {
    "fnet": lambda: transformers.FNetConfig(**{k: v for k, v in SIZE.items() if k != "num_attention_heads"}),
    "convbert": lambda: transformers.ConvBertConfig(**SIZE, embedding_size=48),
}


_FACTORS = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0]
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": _FACTORS,
    "long_factor": _FACTORS[::-1],
    "original_max_position_embeddings": 64,
}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
MOVED_BY_OTHERS: dict[str, Callable[[], Any]] = {  # by longer texts of a batch, or by earlier ones
    "longrope": lambda: transformers.LlamaConfig(**SIZE, num_key_value_heads=4, rope_parameters=_LONGROPE),
    "dynamic": lambda: transformers.LlamaConfig(**SIZE, num_key_value_heads=4, rope_parameters=_DYNAMIC),
    "block_sparse": lambda: transformers.BigBirdConfig(**SIZE),
}


def save(directory: Path, config: Any, auto: Any = _AUTO_MODEL) -> Any:
    model = auto.from_config(config).eval()
    randomise(model)
    model.save_pretrained(directory)
    return model


def padded_engine(directory: Path, **more: Any) -> PaddedEngine:
    engine = load_engine(str(directory), **({"dtype": "float32", "device": "cpu", "engine": "padded"} | more))
    assert isinstance(engine, PaddedEngine)
    assert engine.info.padded
    return engine


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bert")
    save_classifier(directory, "bert", num_labels=3, id2label={0: "bad", 1: "so so", 2: "good"})
    return directory


@pytest.fixture(scope="module")
def engine(bert: Path) -> PaddedEngine:
    return padded_engine(bert)


class TestBesideThePackedEngine:
    def test_it_says_the_same_of_itself(self, bert: Path, engine: PaddedEngine) -> None:
        packed = cpu_engine(bert)
        assert not packed.info.padded
        for field in ("name", "revision", "dtype", "device", "vocab_size", "max_tokens", "tasks", "dim", "labels"):
            assert getattr(engine.info, field) == getattr(packed.info, field), field
        assert engine.directory == packed.directory

    def test_it_gives_the_same_answers_whatever_is_asked(self, bert: Path, engine: PaddedEngine) -> None:
        asked = [TaskOptions("embed", pooling, normalize) for pooling in POOLINGS for normalize in (True, False)]
        asked += [TaskOptions("embed"), TaskOptions("classify")]
        sequences = random_sequences(LENGTHS * 2)
        options = [asked[i % len(asked)] for i in range(len(sequences))]
        types = [(np.arange(len(sequence)) > 5).astype(np.int32) for sequence in sequences]
        for batch in (pack(sequences, options), pack(sequences, options, types)):
            ours, expected = engine.run(batch), cpu_engine(bert).run(batch)
            assert ours.device_s > 0
            for row, other in zip(ours.rows, expected.rows, strict=True):
                assert row.dtype == np.float32
                np.testing.assert_allclose(row, other, atol=1e-5)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_other_families_agree_too(self, tmp_path: Path, family: str) -> None:
        save_encoder(tmp_path, family)
        padded, packed, batch = padded_engine(tmp_path), cpu_engine(tmp_path), pack(random_sequences((3, 40, 17)))
        assert padded.info.max_tokens == packed.info.max_tokens
        np.testing.assert_allclose(padded.run(batch).rows, packed.run(batch).rows, atol=1e-5)

    def test_pairs_score_alike(self, tmp_path: Path) -> None:
        save_classifier(tmp_path, "bert", num_labels=1)
        padded, packed = padded_engine(tmp_path), cpu_engine(tmp_path)
        assert padded.info.tasks == {"embed", "classify", "rerank"}
        for task in ("rerank", "classify"):
            batch = pack(random_sequences((3, 20)), TaskOptions(task))
            np.testing.assert_allclose(padded.run(batch).rows, packed.run(batch).rows, atol=1e-5)

    def test_tokens_score_alike(self, tmp_path: Path) -> None:
        save_tagger(tmp_path, "bert", num_labels=4)
        padded, packed, sequences = padded_engine(tmp_path), cpu_engine(tmp_path), random_sequences((9, 1, 30))
        options = [TaskOptions("token_classify"), TaskOptions("embed"), TaskOptions("token_classify")]
        batch = pack(sequences, options)
        for row, other in zip(padded.run(batch).rows, packed.run(batch).rows, strict=True):
            np.testing.assert_allclose(row, other, atol=1e-5)

    def test_a_tail_and_a_head_of_ones_own_count(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        save_encoder(model, "bert")
        kinds = ("Transformer", "Pooling", "Normalize")
        modules = [
            {
                "idx": i,
                "name": str(i),
                "path": "" if i == 0 else f"{i}_{kind}",
                "type": f"sentence_transformers.models.{kind}",
            }
            for i, kind in enumerate(kinds)
        ]
        (model / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
        write_json(model / "1_Pooling" / "config.json", {"pooling_mode_max_tokens": True})
        head = tmp_path / "head.safetensors"
        weights = {"weight": torch.randn(2, 48), "bias": torch.randn(2)}
        save_file(weights, head, metadata={"labels": json.dumps(["no", "yes"])})
        padded, packed = padded_engine(model, head=str(head)), cpu_engine(model, head=str(head))
        assert padded.info.labels == ("no", "yes")
        for task in ("embed", "classify"):
            batch = pack(random_sequences((5, 11)), TaskOptions(task))
            np.testing.assert_allclose(padded.run(batch).rows, packed.run(batch).rows, atol=1e-5)

    @needs_bfloat16
    def test_bfloat16_is_near(self, bert: Path) -> None:
        batch = pack(random_sequences(LENGTHS))
        rows = np.stack(padded_engine(bert, dtype="bfloat16").run(batch).rows)
        exact = np.stack(cpu_engine(bert).run(batch).rows)
        cosines = np.sum(rows * exact, axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(exact, axis=1)
        assert cosines.min() > 0.99


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=6), data=st.data())
def test_the_batch_changes_nothing_but_rounding(engine: PaddedEngine, lengths: list[int], data: st.DataObject) -> None:
    sequences = random_sequences(lengths, seed=len(lengths))
    asked = [TaskOptions("classify"), *(TaskOptions("embed", pooling) for pooling in POOLINGS)]
    options = [data.draw(st.sampled_from(asked)) for _ in lengths]
    together = engine.run(pack(sequences, options)).rows
    for row, sequence, wanted in zip(together, sequences, options, strict=True):
        np.testing.assert_allclose(row, engine.run(pack([sequence], wanted)).rows[0], atol=1e-5)


class TestPassesOfALargeBatch:
    """In one pass each text would have the padding, and take the memory, of the longest."""

    @settings(max_examples=examples(100))
    @given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=60), most=st.integers(1, 2000), data=st.data())
    def test_each_sequence_is_in_one_and_passes_are_full_and_bounded(
        self, lengths: list[int], most: int, data: st.DataObject
    ) -> None:
        indices = sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1))))
        found = passes(np.array(lengths, np.int32), indices, most)
        assert sorted(index for some in found for index in some) == indices
        for some in found:
            assert len(some) == 1 or len(some) * max(lengths[index] for index in some) <= most
        for some, following in pairwise(found):
            assert (len(some) + 1) * lengths[following[0]] > most

    def test_a_batch_of_several_passes_has_the_rows_of_its_sequences(self, bert: Path, engine: PaddedEngine) -> None:
        sequences = random_sequences(LENGTHS * 12)
        options = [TaskOptions("classify") if i % 3 else TaskOptions("embed") for i in range(len(sequences))]
        batch = pack(sequences, options, [(np.arange(len(sequence)) > 5).astype(np.int32) for sequence in sequences])
        for row, other in zip(engine.run(batch).rows, cpu_engine(bert).run(batch).rows, strict=True):
            np.testing.assert_allclose(row, other, atol=1e-5)


class TestArchitecturesThatTheRuntimeLacks:
    @pytest.mark.parametrize("name", UNKNOWN)
    def test_auto_runs_them_padded_and_says_so(self, tmp_path: Path, name: str) -> None:
        config = UNKNOWN[name]()
        model = save(tmp_path, config)
        with capture_logs() as logs:
            engine = padded_engine(tmp_path, engine="auto")
        assert [(log["event"], log["model_type"]) for log in logs] == [("runs_padded", name)]
        assert (engine.info.max_tokens, engine.info.dim) == (MAX_TOKENS, 48)
        sequences = random_sequences(LENGTHS)
        expected = [reference_hidden(model, sequence) for sequence in sequences]
        rows = engine.run(pack(sequences, TaskOptions("embed", "last", False))).rows
        np.testing.assert_allclose(rows, [hidden[-1] for hidden in expected], atol=1e-4)
        rows = engine.run(pack(sequences, TaskOptions("embed", "mean", False))).rows
        np.testing.assert_allclose(rows, [hidden.mean(axis=0) for hidden in expected], atol=1e-4)

    def test_their_heads_classify(self, tmp_path: Path) -> None:
        config = _ROFORMER(**SIZE, embedding_size=48, num_labels=3)
        model = save(tmp_path, config, _AUTO_CLASSIFIER)
        engine, sequences = padded_engine(tmp_path, engine="auto"), random_sequences((4, 30))
        with torch.no_grad():
            logits = [model(input_ids=torch.from_numpy(s)[None].long()).logits[0] for s in sequences]
        rows = engine.run(pack(sequences, TaskOptions("classify"))).rows
        np.testing.assert_allclose(rows, [torch.softmax(each, dim=0).numpy() for each in logits], atol=1e-5)

    @pytest.mark.parametrize("name", CHANGED_BY_PADDING)
    def test_those_that_padding_changes_are_refused(self, tmp_path: Path, name: str) -> None:
        save(tmp_path, CHANGED_BY_PADDING[name]())
        with pytest.raises(
            UnsupportedCheckpoint, match=r"padding changes the results|cannot run it as a padded encoder"
        ):
            padded_engine(tmp_path)

    @pytest.mark.parametrize("name", MOVED_BY_OTHERS)
    def test_those_that_other_texts_change_are_refused(self, tmp_path: Path, name: str) -> None:
        save(tmp_path, MOVED_BY_OTHERS[name]())
        with pytest.raises(UnsupportedCheckpoint, match=f"{name}.*several answers"):
            padded_engine(tmp_path)


def test_auto_runs_what_the_runtime_knows_packed_and_says_nothing(bert: Path) -> None:
    with capture_logs() as logs:
        assert isinstance(load_engine(str(bert), dtype="float32", device="cpu", engine="auto"), CpuEngine)
    assert logs == []


class TestOnAGpuThatHasNoKernel:
    """As where a GPU is, for the packed engine alone."""

    @pytest.fixture(autouse=True)
    def _gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.engine.device.missing_for_gpu", lambda padded: "none" if padded else None)
        monkeypatch.setattr("penstock.engine.loading.encoder.device_name", lambda: "a GPU")

    @pytest.mark.parametrize("dtype", ["auto", "float32"])
    def test_auto_runs_it_padded_and_says_why(self, tmp_path: Path, dtype: str) -> None:
        save_encoder(tmp_path, "bert", hidden_size=60)
        with capture_logs() as logs:
            engine = load_engine(str(tmp_path), engine="auto", dtype=dtype)
        assert isinstance(engine, PaddedEngine)
        (log,) = logs
        assert (log["event"], log["model_type"]) == ("runs_padded", "bert")
        assert "hidden size 60 is no multiple of 8" in log["reason"]

    def test_packed_is_refused_and_a_cpu_can_be_asked_for(self, tmp_path: Path) -> None:
        save_encoder(tmp_path, "bert", hidden_size=60)
        with pytest.raises(UnsupportedDevice, match="hidden size 60 is no multiple of 8"):
            load_engine(str(tmp_path), engine="packed")
        assert isinstance(load_engine(str(tmp_path), engine="auto", device="cpu"), CpuEngine)


class TestRefusals:
    def test_an_unknown_architecture(self, tmp_path: Path) -> None:
        save_encoder(tmp_path, "bert")
        edit_json(tmp_path / "config.json", model_type="ownbert")
        with pytest.raises(
            UnsupportedCheckpoint, match="transformers does not implement model_type 'ownbert'"
        ) as refused:
            padded_engine(tmp_path, engine="auto")
        assert len(str(refused.value)) < 600

    def test_token_types_of_several_kinds(self, tmp_path: Path) -> None:
        config = transformers.TapasConfig(**SIZE, type_vocab_sizes=[3, 2, 2, 2, 2, 2, 2])
        save(tmp_path, config)
        with pytest.raises(UnsupportedCheckpoint, match="TapasModel cannot be run with token types of one kind"):
            padded_engine(tmp_path)

    def test_pickles_are_never_read(self, tmp_path: Path) -> None:
        model = save_encoder(tmp_path, "bert")
        (tmp_path / "model.safetensors").unlink()
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match="never read"):
            padded_engine(tmp_path)

    def test_a_gpu_that_is_not_there(self, bert: Path) -> None:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        with pytest.raises(UnsupportedDevice, match="no CUDA GPU"):
            padded_engine(bert, device="cuda")

    def test_an_engine_that_is_none(self, bert: Path) -> None:
        with pytest.raises(ValueError, match="auto, packed, padded"):
            load_engine(str(bert), engine="sparse")

    def test_a_task_a_pooling_and_token_types_that_it_does_not_have(self, engine: PaddedEngine) -> None:
        sequences = random_sequences((3,))
        with pytest.raises(ValueError, match="task 'rerank'"):
            engine.run(pack(sequences, TaskOptions("rerank")))
        with pytest.raises(ValueError, match="pooling 'sum'"):
            engine.run(pack(sequences, TaskOptions("embed", "sum")))
        with pytest.raises(ValueError, match=r"token types must lie in \[0, 2\); found 0 to 7"):
            engine.run(pack(sequences, types=[np.array([0, 7, 1], np.int32)]))


@pytest.mark.parametrize("num_options", [1, 3])
def test_every_sequence_needs_its_options(engine: PaddedEngine, num_options: int) -> None:
    batch = pack(random_sequences((5, 3)), [TaskOptions("embed")] * num_options)
    with pytest.raises(InvalidBatch, match=f"options must be 2, one for each sequence; found {num_options}"):
        engine.run(batch)


def test_the_pad_token_may_be_among_the_tokens(engine: PaddedEngine, bert: Path) -> None:
    sequences = [np.array([5, PAD, 0, 7], np.int32), np.array([0], np.int32), np.array([9, 0, 0, 0, 0, 0], np.int32)]
    rows, expected = engine.run(pack(sequences)).rows, cpu_engine(bert).run(pack(sequences)).rows
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_transformers_says_nothing_of_its_own_while_it_loads(bert: Path, capfd: pytest.CaptureFixture[str]) -> None:
    padded_engine(bert)
    assert capfd.readouterr() == ("", "")
