"""Values of config.json: each that a reader does not expect is refused by its key, or changes nothing."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.engine import load_engine
from penstock.engine.errors import CheckpointError, EngineError
from penstock.engine.families import FAMILIES
from penstock.engine.generation.loading import load_seq2seq
from penstock.engine.model.files import Config, read_json, require_int, setting
from tests.engine import helpers
from tests.engine.generation.helpers import save_seq2seq

_STRANGE = ("x", ["x"], 5, {"a": {"rope_type": ["x"]}})
_HUGE = (1 << 31, 10**30)
_NOT_IN_ALL = ("id2label", "rope_parameters", "rope_scaling", "sentence_transformers", "problem_type", "label2id")


@pytest.mark.parametrize(
    ("default", "value", "found"),
    [(1.5, 2, 2.0), (1.5, None, 1.5), (3, 4, 4), (False, True, True), ("", "x", "x"), ([], [1], [1]), ({}, {}, {})],
)
def test_a_value_of_the_type_of_its_default_is_read(default: Any, value: object, found: object) -> None:
    assert setting({"key": value}, "key", default) == found
    assert setting({}, "key", default) is default


@pytest.mark.parametrize(
    ("default", "value", "words"),
    [
        (1.5, "1", "must be a number, not '1'"),
        (1.5, True, "must be a number, not True"),
        (3, 4.0, "must be a whole number, not 4.0"),
        (3, True, "must be a whole number, not True"),
        (False, 0, "must be true or false, not 0"),
        ("", ["x"], r"must be a string, not \['x'\]"),
        ([], "x", "must be a list, not 'x'"),
        ({}, 5, "must be an object, not 5"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(default: Any, value: object, words: str) -> None:
    with pytest.raises(CheckpointError, match=f"'key' {words}"):
        setting({"key": value}, "key", default)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *[(value, "must be a positive integer") for value in (0, -1, 1.0, True, "1", math.nan)],
        *[(value, "is above") for value in (1 << 21, 10**30)],
        (None, "is missing"),
    ],
)
def test_a_size_is_a_positive_whole_number_within_bounds(value: object, words: str) -> None:
    with pytest.raises(CheckpointError, match=f"'key' {words}"):
        require_int({"key": value}, "key")


def test_the_file_of_a_value_is_named(tmp_path: Path) -> None:
    helpers.write_json(tmp_path / "own.json", {"key": 5})
    with pytest.raises(CheckpointError, match=r"own\.json: 'key' must be a string"):
        setting(read_json(tmp_path / "own.json"), "key", "")


def _refuse_or_load(directory: Path, load: Callable[[str], object], strange: Sequence[object]) -> None:
    """With each value of config.json in turn, and some that it lacks, of every other type."""
    path = directory / "config.json"
    config: Config = json.loads(path.read_text(encoding="utf-8"))
    for key in {*config, *_NOT_IN_ALL}:
        for value in strange:
            helpers.write_json(path, config | {key: value})
            try:
                load(str(directory))
            except EngineError:
                continue
            except Exception as error:
                raise AssertionError(f"{key}: {value!r} ends with {error!r}") from error


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({id(one): name for name, one in FAMILIES.items()}.values()))
def test_no_value_ends_the_load_of_a_checkpoint_with_a_bare_error(tmp_path: Path, family: str) -> None:
    (helpers.save_classifier if family in helpers.CLASSIFIERS else helpers.save_encoder)(tmp_path, family)
    _refuse_or_load(tmp_path, lambda model: load_engine(model, dtype="float32", device="cpu"), (*_STRANGE, *_HUGE))


@pytest.mark.slow
def test_no_value_ends_the_load_of_a_padded_model_with_a_bare_error(tmp_path: Path) -> None:
    helpers.save_encoder(tmp_path, "bert")
    _refuse_or_load(
        tmp_path, lambda model: load_engine(model, engine="padded", dtype="float32", device="cpu"), _STRANGE
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", ["marian", "t5-gated"])
def test_no_value_ends_the_load_of_a_generator_with_a_bare_error(tmp_path: Path, family: str) -> None:
    save_seq2seq(tmp_path, family)
    _refuse_or_load(tmp_path, load_seq2seq, (*_STRANGE, *_HUGE))
