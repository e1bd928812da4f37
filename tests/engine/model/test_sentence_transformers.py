"""Prompts and cut embeddings as sentence-transformers computes them, for small models that it saved itself."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer

from penstock.engine import TaskOptions, load_engine
from penstock.engine.errors import CheckpointError, UnsupportedCheckpoint
from penstock.engine.types import Float32Array
from penstock.producer.errors import InvalidRequest
from penstock.producer.prompts import Prompts
from penstock.producer.tokenization import Tokenizer
from penstock.producer.tokenizer_files import TokenizerError
from penstock.producer.wire.messages import Options, Request, Text
from tests.engine.helpers import edit_json, pack, save_classifier, save_sentence_transformer, save_tokenizer

pytestmark = pytest.mark.slow

STATED = "config_sentence_transformers.json"
PROMPTS = {"query": "search query : ", "document": "passage : ", "topic": "cluster : "}
TEXTS = ["a river in spring", "where is the river", "snow", "the snow is in spring where a river is the query"]
WORDS = sorted({word for text in (*TEXTS, *PROMPTS.values(), "instruct : first") for word in text.split()})


def save_model(directory: Path, **config: Any) -> Any:
    """The saved model, loaded again by sentence-transformers."""
    save_sentence_transformer(directory, WORDS, **config)
    return SentenceTransformer(str(directory / "model"), device="cpu")


def embed(
    directory: Path, texts: Sequence[Text], options: Options | None = None, *, engine: str = "packed", **wanted: Any
) -> Float32Array:
    """The vectors of texts, prepared as a worker prepares them."""
    tokenizer = Tokenizer.from_directory(directory)
    asked = Request("m", "embed", text=tuple(texts), options=options or Options())
    request, left_out = tokenizer.prompts.apply(asked), tokenizer.prompts.left_out(asked)
    if left_out:
        wanted["prompt_tokens"] = tokenizer.count_prompt(left_out, truncate=False)
    encoded = tokenizer.encode(request.text or (), truncate=False)
    types = [np.zeros_like(one.ids) if one.token_type_ids is None else one.token_type_ids for one in encoded]
    loaded = load_engine(str(directory), dtype="float32", device="cpu", engine=engine)
    return np.stack(loaded.run(pack([one.ids for one in encoded], TaskOptions("embed", **wanted), types)).rows)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model whose default is its query's prompt, and its directory."""
    directory = tmp_path_factory.mktemp("prompted")
    return save_model(directory, prompts=PROMPTS, default_prompt_name="query"), directory / "model"


@pytest.fixture
def spoiled(prompted: tuple[Any, Path], tmp_path: Path) -> Path:
    """A copy of the directory of that model, free to be spoiled."""
    return shutil.copytree(prompted[1], tmp_path / "model")


@pytest.mark.parametrize("engine", ["packed", "padded"])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"prompt_name": "query"},
        {"prompt_name": "document"},
        {"prompt_name": "topic"},
        {"prompt": "instruct : first "},
        {"prompt": ""},
    ],
)
def test_prompts_give_the_vectors_of_encode(prompted: tuple[Any, Path], engine: str, asked: dict[str, str]) -> None:
    reference, directory = prompted
    got = embed(directory, TEXTS, Options(**asked), engine=engine)  # type: ignore[arg-type]  # both take strings
    np.testing.assert_allclose(got, reference.encode(TEXTS, **asked), atol=1e-5)


def test_the_prompts_change_the_vectors(prompted: tuple[Any, Path]) -> None:
    """The reference itself would pass the test above if no prompt had an effect."""
    results = [embed(prompted[1], TEXTS, Options(prompt_name=name)) for name in PROMPTS]
    assert min(np.abs(first - second).max() for first in results for second in results if first is not second) > 1e-3


def test_query_and_document_are_those_of_encode_query_and_encode_document(prompted: tuple[Any, Path]) -> None:
    reference, directory = prompted
    query, document = (embed(directory, TEXTS, Options(prompt_name=name)) for name in ("query", "document"))
    np.testing.assert_allclose(query, reference.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(document, reference.encode_document(TEXTS), atol=1e-5)


def test_a_pair_has_the_prompt_before_its_first_text(prompted: tuple[Any, Path]) -> None:
    reference, directory = prompted
    pairs = [("snow", "a river"), ("where is the snow", "spring")]
    np.testing.assert_allclose(embed(directory, pairs), reference.encode(pairs), atol=1e-5)


def test_an_unknown_name_is_refused_with_the_known_ones(prompted: tuple[Any, Path]) -> None:
    with pytest.raises(
        InvalidRequest, match=r"no such prompt\. Its prompts: document, query, topic\. Given: 'passage'"
    ):
        embed(prompted[1], TEXTS, Options(prompt_name="passage"))


def test_other_tasks_and_token_ids_take_no_default_prompt() -> None:
    prompts = Prompts({"query": "q "}, default="q ")
    for request in (Request("m", "classify", text=("a",)), Request("m", "token_classify", text=("a",))):
        assert prompts.apply(request) is request


def test_query_and_document_are_known_and_empty_without_a_configuration(tmp_path: Path) -> None:
    reference = save_model(tmp_path)
    got = embed(tmp_path / "model", TEXTS, Options(prompt_name="query"))
    np.testing.assert_allclose(got, reference.encode(TEXTS, prompt_name="query"), atol=1e-5)
    np.testing.assert_allclose(got, embed(tmp_path / "model", TEXTS), atol=0)


@pytest.mark.parametrize(
    "broken",
    [
        {"default_prompt_name": "none"},
        {"default_prompt_name": ["query"]},
        {"prompts": ["query"]},
        {"prompts": {"query": 1}},
        {"prompts": {"query": "\ud800"}},
    ],
)
def test_prompts_that_cannot_be_read_are_an_error(spoiled: Path, broken: dict[str, Any]) -> None:
    edit_json(spoiled / STATED, **broken)
    with pytest.raises(TokenizerError, match="prompt"):
        Tokenizer.from_directory(spoiled)


def test_whether_prompts_are_pooled_must_be_true_or_false(spoiled: Path) -> None:
    edit_json(spoiled / "1_Pooling" / "config.json", include_prompt="no")
    with pytest.raises(TokenizerError, match="include_prompt"):
        Tokenizer.from_directory(spoiled)


def test_prompts_of_another_kind_of_model_are_ignored(spoiled: Path) -> None:
    """As in sentence-transformers, which loads a cross-encoder for embeddings without its prompts."""
    edit_json(spoiled / STATED, model_type="CrossEncoder")
    prompts = Tokenizer.from_directory(spoiled).prompts
    asked = Request("m", "embed", text=("snow",), options=Options(prompt_name="query"))
    for request in (asked, Request("m", "embed", text=("snow",))):
        assert prompts.apply(request) == request
    with pytest.raises(InvalidRequest, match=r"Its prompts: document, query\. Given: 'topic'"):
        prompts.apply(Request("m", "embed", text=("snow",), options=Options(prompt_name="topic")))


def test_a_cross_encoder_of_several_labels_with_a_default_prompt_is_refused(tmp_path: Path) -> None:
    plain, saved = tmp_path / "plain", tmp_path / "saved"
    save_classifier(plain, "bert", num_labels=3, pad_token_id=0)
    save_tokenizer(plain, ["where"])
    CrossEncoder(str(plain), device="cpu").save_pretrained(str(saved))
    edit_json(saved / STATED, prompts={"r": "rank: "}, default_prompt_name="r")
    with pytest.raises(UnsupportedCheckpoint, match="default prompt"):
        load_engine(str(saved), dtype="float32", device="cpu")


@pytest.mark.parametrize("engine", ["packed", "padded"])
@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "lasttoken"])
def test_pooling_leaves_out_the_prompt_where_the_checkpoint_says_so(tmp_path: Path, engine: str, pooling: str) -> None:
    reference = save_model(tmp_path, prompts=PROMPTS, default_prompt_name="query", include_prompt=False)
    edit_json(tmp_path / "model" / "1_Pooling" / "config.json", pooling_mode=pooling)
    reference[1].pooling_mode = pooling
    ways: list[dict[str, str]] = [{}, {"prompt_name": "topic"}, {"prompt": "instruct : first "}, {"prompt": ""}]
    texts = [*TEXTS, ""]
    for asked in ways:
        got = embed(tmp_path / "model", texts, Options(**asked), engine=engine)  # type: ignore[arg-type]  # strings
        np.testing.assert_allclose(got, reference.encode(texts, **asked), atol=1e-5)
    pairs = [("snow", "a river"), ("where is the snow", "spring")]
    np.testing.assert_allclose(embed(tmp_path / "model", pairs, engine=engine), reference.encode(pairs), atol=1e-5)
    edit_json(tmp_path / "model" / "1_Pooling" / "config.json", include_prompt=True)
    if pooling != "lasttoken":  # the same whatever is left out before it
        assert np.abs(embed(tmp_path / "model", texts, engine=engine) - reference.encode(texts)).max() > 1e-3


@pytest.mark.parametrize("engine", ["packed", "padded"])
@pytest.mark.parametrize("normalize", [False, True])
def test_dimensions_cut_before_normalising(tmp_path: Path, engine: str, normalize: bool) -> None:
    reference = save_model(tmp_path, normalize=normalize, truncate_dim=16)
    got = embed(tmp_path / "model", TEXTS, engine=engine, dimensions=8)
    want = reference.encode(TEXTS, truncate_dim=8, normalize_embeddings=normalize)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert got.shape == (len(TEXTS), 8)


@pytest.mark.parametrize("has_module", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_normalising_on_request_follows_the_cut(tmp_path: Path, normalize: bool, has_module: bool) -> None:
    reference = save_model(tmp_path, truncate_dim=16, normalize=has_module and normalize)
    for dimensions in (8, None):  # None: those that the checkpoint states
        got = embed(tmp_path / "model", TEXTS, dimensions=dimensions, normalize=normalize)
        want = reference.encode(TEXTS, truncate_dim=dimensions or 16, normalize_embeddings=normalize)
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_cut_of_the_checkpoint_follows_its_normalize_module(tmp_path: Path) -> None:
    reference = save_model(tmp_path, truncate_dim=16, normalize=True)
    got = embed(tmp_path / "model", TEXTS)
    np.testing.assert_allclose(got, reference.encode(TEXTS), atol=1e-5)
    assert np.linalg.norm(got, axis=1).max() < 0.99


def test_truncate_dim_is_the_default_length_and_a_longer_one_can_be_asked_for(tmp_path: Path) -> None:
    reference = save_model(tmp_path, truncate_dim=16)
    info = load_engine(str(tmp_path / "model"), dtype="float32", device="cpu").info
    assert (info.dim, info.dimensions) == (16, (16, 48))
    np.testing.assert_allclose(embed(tmp_path / "model", TEXTS), reference.encode(TEXTS), atol=1e-5)
    whole = embed(tmp_path / "model", TEXTS, dimensions=48)
    np.testing.assert_allclose(whole, reference.encode(TEXTS, truncate_dim=48), atol=1e-5)


CARD = '* Loss: MatryoshkaLoss\n  ```json\n  {"matryoshka_dims": [\n 48,\n 24, 12],\n "n": 1}\n```\n'


@pytest.mark.parametrize(
    ("config", "card", "expected"),
    [({}, "", ()), ({"matryoshka_dimensions": [8, 16, 64]}, "", (8, 16, 48)), ({}, CARD, (12, 24, 48))],
)
def test_a_checkpoint_states_the_lengths_that_it_was_trained_for(
    spoiled: Path, config: dict[str, Any], card: str, expected: tuple[int, ...]
) -> None:
    (spoiled / "README.md").write_text(card, encoding="utf-8")
    edit_json(spoiled / "config.json", **config)
    for engine in ("packed", "padded"):
        assert load_engine(str(spoiled), dtype="float32", device="cpu", engine=engine).info.dimensions == expected


@pytest.mark.parametrize("stated", [16, [[16]], [True], ["16"]])
def test_matryoshka_dimensions_that_are_no_lengths_are_refused(spoiled: Path, stated: Any) -> None:
    edit_json(spoiled / "config.json", matryoshka_dimensions=stated)
    with pytest.raises(CheckpointError, match="must be a list of positive integers"):
        load_engine(str(spoiled), dtype="float32", device="cpu")


@pytest.mark.parametrize("stated", [0, "16", [16], True])
def test_a_truncate_dim_that_is_no_length_is_refused(spoiled: Path, stated: Any) -> None:
    edit_json(spoiled / STATED, truncate_dim=stated)
    with pytest.raises(CheckpointError, match="truncate_dim must be a positive integer"):
        load_engine(str(spoiled), dtype="float32", device="cpu")
