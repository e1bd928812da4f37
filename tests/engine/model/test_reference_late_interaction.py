"""Token vectors of queries and documents are those of MultiVectorEncoder, in each layout that it reads."""

import contextlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from penstock.engine import TaskOptions, load_engine
from penstock.engine.errors import CheckpointError
from penstock.engine.families import family_of
from penstock.engine.families.late_interaction import stated_lengths, token_vectors
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.engine.types import Float32Array
from penstock.producer.errors import TooLong
from penstock.producer.tokenization import Tokenizer
from penstock.producer.tokenizer_files import TokenizerError
from tests.engine.helpers import cpu_engine, pack, randomise, save_encoder, write_json
from tests.engine.model.test_reference_texts import LONGER, TEXTS, VOCAB, edit, save_tokenizer, tokenizer_of

pytestmark = pytest.mark.slow

ALL = [*TEXTS, "a card. Where, my card?", "!", *LONGER]
MORE_WORDS = ("[unused0]", "[unused1]", ".", ",", "!", "?")
TOKENS = "token_embeddings"
EXPANSION = {"strategy": "fixed", "length": 20, "attend": True}


def save_plain(directory: Path, family: str = "bert") -> None:
    """An encoder with a tokenizer that has markers and punctuation in its vocabulary."""
    save_tokenizer(directory, tokenizer_of(family))
    edit(directory / "tokenizer_config.json", model_max_length=60)
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary |= {word: len(vocabulary) + index for index, word in enumerate(MORE_WORDS)}
    write_json(file, content)
    save_encoder(directory, family, vocab_size=VOCAB, **({"local_attention": 128} if family == "modernbert" else {}))


def save_own(directory: Path, family: str = "bert", *, skipped: Sequence[str] = (), tasks: str = "document",
             prompts: Any = None, marked: bool = True, **transformer: Any) -> Path:  # fmt: skip
    """As version 6 saves it, in a directory of its own. marked: the prompts are special tokens."""
    save_plain(directory / "plain", family)
    modules = [
        Transformer(str(directory / "plain"), **transformer),
        dense_module(),
        MultiVectorMask([*skipped], skiplist_tasks=tasks),
        Normalize(module_input_name=TOKENS),
    ]
    prompts = {"query": "[unused0] ", "document": "[unused1] "} if prompts is None else prompts
    encoder = MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu")
    if marked:
        encoder._register_prefix_tokens(prompts)
    encoder.save(str(directory / "model"))
    return directory / "model"


def dense_module() -> Dense:
    dense = Dense(48, 32, bias=False, activation_function=torch.nn.Identity(), module_input_name=TOKENS)
    randomise(dense)
    return dense


def save_pylate(directory: Path, family: str = "bert", **saved: Any) -> Path:
    """As PyLate 1 saves it."""
    save_plain(directory, family)
    (directory / "1_Dense").mkdir()
    dense_module().save(str(directory / "1_Dense"))
    config = json.loads((directory / "1_Dense" / "config.json").read_text(encoding="utf-8"))
    write_json(directory / "1_Dense" / "config.json", {k: v for k, v in config.items() if not k.startswith("module_")})
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    write_json(directory / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(kinds.items())
    ])  # fmt: skip
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": 11, "do_lower_case": False})
    own = {"query_prefix": "[unused0]", "document_prefix": "[unused1]", "query_length": 20, "document_length": 12,
           "attend_to_expansion_tokens": False, "skiplist_words": [".", ","]}  # fmt: skip
    write_json(directory / "config_sentence_transformers.json", {"model_type": "ColBERT"} | own | saved)
    return directory


def save_stanford(directory: Path, **metadata: Any) -> Path:
    """As ColBERT saves it: a projection among the weights, and artifact.metadata."""
    save_plain(directory)
    file = directory / "model.safetensors"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(file).items()}
    projection = {"linear.weight": torch.randn(32, 48, generator=torch.Generator().manual_seed(3)) / 7}
    save_file(tensors | projection, file, metadata={"format": "pt"})
    edit(directory / "config.json", architectures=["HF_ColBERT"])
    if metadata:
        write_json(directory / "artifact.metadata", metadata)
    return directory


def run(directory: Path, texts: Sequence[str], role: str, *, alone: bool = False) -> list[Float32Array]:
    """Rows of texts with the prompt of a role, tokenized and cut as a worker does it."""
    engine, tokenizer = cpu_engine(directory), Tokenizer.from_directory(directory)
    prompted = [tokenizer.prompts.by_name[role] + text for text in texts]
    encoded = tokenizer.encode(prompted, truncate=True, max_tokens=engine.info.max_tokens)
    tokenizer.close()
    ids = [one.ids for one in encoded]
    batches = [[one] for one in ids] if alone else [ids]
    return [row for batch in batches for row in engine.run(pack(batch, TaskOptions("embed_tokens"))).rows]


def assert_as_multi_vector_encoder(directory: Path) -> dict[str, list[Float32Array]]:
    reference = MultiVectorEncoder(str(directory), device="cpu", local_files_only=True)
    found = {}
    for role, encode in (("query", reference.encode_query), ("document", reference.encode_document)):
        rows = found[role] = run(directory, ALL, role)
        for text, row in zip(ALL, rows, strict=True):
            expected = encode([text], convert_to_numpy=True)[0]  # alone, without padding
            assert row.shape == expected.shape, (role, text)
            np.testing.assert_allclose(row, expected, rtol=0, atol=1e-5, err_msg=f"{role}: {text}")
        assert [row.tobytes() for row in run(directory, ALL, role, alone=True)] == [row.tobytes() for row in rows]
    return found


FAMILIES_HERE = ("bert", "distilbert", "modernbert")


@pytest.mark.parametrize("family", FAMILIES_HERE)
@pytest.mark.parametrize("attend", [True, False])
@pytest.mark.parametrize("strategy", ["fixed", "min"])
def test_a_directory_of_version_6(tmp_path: Path, family: str, attend: bool, strategy: str) -> None:
    expansion = {"strategy": strategy, "length": 20, "attend": attend}
    found = assert_as_multi_vector_encoder(
        save_own(tmp_path, family, skipped=[".", "?"], document_length=40, query_expansion=expansion)
    )
    assert {len(row) for row in found["query"]} >= {20}
    assert ({len(row) for row in found["query"]} == {20}) == (strategy == "fixed")
    assert max(len(row) for row in found["document"]) == 40


def test_one_without_prompts_and_roles(tmp_path: Path) -> None:
    assert_as_multi_vector_encoder(save_own(tmp_path, prompts={}))


def test_prompts_of_text_where_roles_do_not_matter_to_the_engine(tmp_path: Path) -> None:
    prompts = {"query": "where: ", "document": "the: "}
    assert_as_multi_vector_encoder(
        save_own(tmp_path, prompts=prompts, marked=False, query_length=10, document_length=20)
    )


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"attend_to_expansion_tokens": True},
        {"do_query_expansion": False},
        {"skiplist_words": None, "query_prefix": "[unused0] ", "document_prefix": "[unused1] "},
        {"prompts": {"query": "where ", "document": "[unused1]the "}, "query_length": None, "document_length": None},
    ],
    ids=str,
)
def test_a_directory_of_pylate(tmp_path: Path, saved: dict[str, Any]) -> None:
    assert_as_multi_vector_encoder(save_pylate(tmp_path, **saved))


def test_rotary_positions_are_enough_for_each_role(tmp_path: Path) -> None:
    """As GTE-ModernColBERT has them: its transformer states 299 tokens, and documents have 300."""
    assert_as_multi_vector_encoder(save_pylate(tmp_path, "modernbert"))


def test_prefixes_that_were_added_to_the_tokenizer(tmp_path: Path) -> None:
    """As GTE-ModernColBERT has them: with a space at the end, and normalised, which lower-casing would not find."""
    save_pylate(tmp_path, query_prefix="[Q] ", document_prefix="[D] ")
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    first = len(content["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    content["added_tokens"] += [{"id": first + i, "content": name} | flags for i, name in enumerate(("[Q] ", "[D] "))]
    write_json(file, content)
    assert_as_multi_vector_encoder(tmp_path)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"query_maxlen": 16, "doc_maxlen": 24, "mask_punctuation": False},
        {"query_maxlen": None, "doc_maxlen": None, "mask_punctuation": None},
        {"query_token_id": "[unused1]", "doc_token_id": "[unused0]", "attend_to_mask_tokens": True},
    ],
    ids=str,
)
def test_a_directory_of_colbert_itself(tmp_path: Path, metadata: dict[str, Any]) -> None:
    assert_as_multi_vector_encoder(save_stanford(tmp_path, **metadata))


def test_a_document_that_begins_with_the_marker_of_queries_is_none(tmp_path: Path) -> None:
    """Also where no special token precedes the prompts, so that the text's own first token is the second."""
    directory = save_own(tmp_path, skipped=["."])
    edit(directory / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    alone = [{"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": alone, "pair": alone * 2, "special_tokens": {}}
    edit(directory / "tokenizer.json", post_processor=template)
    reference = MultiVectorEncoder(str(directory), device="cpu", local_files_only=True)
    [expected] = reference.encode_document(["[unused0] card."], convert_to_numpy=True)
    [row] = run(directory, ["[unused0] card."], "document")
    np.testing.assert_allclose(row, expected, rtol=0, atol=1e-5)


def test_roles_mix_in_a_batch_and_the_limits_are_told(tmp_path: Path) -> None:
    directory = save_pylate(tmp_path)
    engine, tokenizer = cpu_engine(directory), Tokenizer.from_directory(directory)
    assert (sorted(engine.info.tasks), engine.info.dim, engine.info.token_dim) == (["embed_tokens"], 0, 32)
    assert engine.info.max_tokens == 20  # of a query; the transformer states 11, and documents have 12
    texts = [tokenizer.prompts.by_name[role] + text for text in ALL for role in ("document", "query")] + ["a card"]
    ids = [one.ids for one in tokenizer.encode(texts, truncate=True, max_tokens=20)]
    together = engine.run(pack(ids, TaskOptions("embed_tokens"))).rows
    by_role = {role: run(directory, ALL, role) for role in ("document", "query")}
    expected = [row for pair in zip(by_role["document"], by_role["query"], strict=True) for row in pair]
    assert [row.tobytes() for row in together[:-1]] == [row.tobytes() for row in expected]
    too_long = [texts[1] + " card" * 30, "a card", texts[0] + " card" * 30]  # a query is cut all the same
    with pytest.raises(TooLong, match=r"Text 2 must have at most 12 tokens\. Given: ") as caught:
        tokenizer.encode(too_long, truncate=False)
    assert list(caught.value.rows) == [2]
    tokenizer.close()


async def test_tokens_are_the_same_from_both_doors(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(save_pylate(tmp_path))
    texts = [tokenizer.prompts.by_name[role] + text for text in ALL for role in ("document", "query", "document")]
    there = tokenizer.encode(texts, truncate=True, max_tokens=20)
    here = await tokenizer.encode_async(texts, truncate=True, max_tokens=20)
    assert [one.ids.tolist() for one in here] == [one.ids.tolist() for one in there]
    tokenizer.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"skipped": ["."], "tasks": ["query", "document"]}, "of documents alone"),
        ({"skipped": ["."], "prompts": {}}, "told by the first token of the query's prompt"),
        ({"skipped": ["."], "prompts": {"query": "[unused0] "}}, "documents have no prompt"),
        ({"skipped": ["."], "marked": False}, "told by the first token of the query's prompt"),
        ({"family": "modernbert", "query_expansion": {"strategy": "fixed", "length": 90}}, "window"),
        ({"family": "mpnet", "query_expansion": {"strategy": "fixed", "length": 20}}, "relative positions"),
        ({"query_expansion": EXPANSION | {"length": 200}}, "filled up to 200 tokens, and the model takes 130"),
    ],
    ids=str,
)
def test_what_an_engine_cannot_tell_or_compute_is_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        load_engine(str(save_own(tmp_path, **options)), device="cpu", engine="auto")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"prompts": {}, "document_length": 20}, "have a length of their own and no prompt"),
        ({"prompts": {"document": "the "}, "query_expansion": EXPANSION}, "have a length of their own and no prompt"),
        ({"prompts": {"query": "where "}, "document_length": 20}, "have a length of their own and no prompt"),
        ({"prompts": {"query": "a ", "document": "a b "}, "query_length": 20}, "have a length of their own and no"),
        ({"prompts": {"query": "a b ", "document": "a "}, "query_length": 20}, "have a length of their own and no"),
        ({"prompts": {"query": "where "}, "query_length": 20}, "have a length of their own and no prompt"),
        ({"prompts": {"document": "the "}, "document_length": 20}, "have a length of their own and no prompt"),
        ({"query_expansion": EXPANSION | {"token": "<m>"}}, "expanded with '<m>'"),
    ],
    ids=str,
)
def test_what_a_tokenizer_cannot_tell_is_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    directory = save_own(tmp_path)
    if "prompts" in options:
        edit(directory / "config_sentence_transformers.json", prompts=options.pop("prompts"))
    edit(directory / "sentence_bert_config.json", **options)
    with pytest.raises(TokenizerError, match=reason):
        Tokenizer.from_directory(directory)


@pytest.mark.parametrize("save", [save_own, save_pylate, save_stanford])
def test_settings_of_other_types_are_told(tmp_path: Path, save: Any) -> None:
    """The tokenizer and the engine read or refuse a checkpoint, whatever its files hold."""
    directory = save(tmp_path)
    write_json(directory / "artifact.metadata", {})
    files = ("config_sentence_transformers.json", "sentence_bert_config.json", "artifact.metadata",
             "2_MultiVectorMask/config.json")  # fmt: skip
    keys = ("query_length", "document_length", "query_expansion", "query_prefix", "prompts", "skiplist_words",
            "skiplist_tasks", "doc_maxlen", "query_maxlen", "query_token_id", "tokenizer_args", "model_type",
            "attend_to_expansion_tokens", "do_query_expansion", "default_prompt_name")  # fmt: skip
    for file in [directory / name for name in files if (directory / name).exists()]:
        content = json.loads(file.read_text(encoding="utf-8"))
        for key, value in itertools.product(keys, (7, -1, "x", [[3]], {"strategy": "fixed", "length": "x"}, True)):
            write_json(file, content | {key: value})
            with contextlib.suppress(TokenizerError):
                Tokenizer.from_directory(directory).close()
            with contextlib.suppress(CheckpointError):
                admitted = read_checkpoint(directory)
                if admitted.task == "embed_tokens":
                    token_vectors(admitted, family_of(admitted).encoder(admitted))
                    stated_lengths(admitted)
        write_json(file, content)
