"""Decoders of what comes from disks, other processes and identity providers."""

import atexit
import functools
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import fields
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from safetensors.numpy import save

from penstock.cache import rows
from penstock.engine.errors import EngineError
from penstock.engine.families.heads import linear_head
from penstock.engine.model.checkpoint import read_checkpoint
from penstock.producer.errors import BackendError, InvalidRequest
from penstock.producer.files import TableError, open_reader
from penstock.producer.prompts import read_prompts
from penstock.producer.transport.access_token import AccessToken, NoToken, read_answer, read_token
from penstock.scheduler.costs.table import CorruptTable, CostTable
from penstock.worker.batching.startup_costs import MeasuredCosts
from penstock.worker.control_socket import Report, read_report
from tests.fuzz.decoder import Decoder
from tests.fuzz.mutations import mutated_bytes, mutated_json

_KEY = b"k" * 32


@functools.cache
def _folder() -> Path:
    """In memory, where there is a file system for that; removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _report(value: bytes) -> None:
    report = read_report(value)
    wanted = {field.name: getattr(Report(), field.name) for field in fields(Report)} | {"metrics_port": 1}
    for name, default in wanted.items():
        if report is not None and not isinstance(getattr(report, name), type(default) | None):
            raise AssertionError(f"{name} is {getattr(report, name)!r}")


def _cache_row(value: bytes) -> None:
    if rows._unseal(_KEY, value) not in (None, b"an answer"):
        raise AssertionError("a value that was never stored")


def _cost_table(value: bytes) -> None:
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):  # the file's reader finds no table then
        return
    table = CostTable.from_dict(data)
    if not table.seconds(100, 1000, 20, 5) >= 0:
        raise AssertionError("negative seconds")


def _table(extension: str) -> Callable[[bytes], None]:
    def read(value: bytes) -> None:
        path = _folder() / f"table.{extension}"
        path.write_bytes(value)
        with open_reader(path, "text") as reader:
            for block in reader:
                if not all(isinstance(text, str | InvalidRequest | BackendError) for text in block.texts):
                    raise AssertionError(f"{block.texts}")

    return read


def _measured_costs(value: bytes) -> None:
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):
        return
    if isinstance(data, dict):  # as the file's reader gives it
        MeasuredCosts.from_dict(data).errors()


def _token(read: Callable[[bytes], AccessToken]) -> Callable[[bytes], None]:
    def check(value: bytes) -> None:
        token = read(value)
        if not token.text.isascii() or set(token.text) & set(" \t\r\n\x01,") or not 0 <= token.reuse_s < math.inf:
            raise AssertionError(f"{token}")

    return check


def _in_checkpoint(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    """With the input as one file of a checkpoint whose others are valid."""

    def check(value: bytes) -> None:
        directory = _folder() / name
        directory.mkdir(exist_ok=True)
        for other, content in _CHECKPOINT.items():
            if other != name and not directory.joinpath(other).exists():
                directory.joinpath(other).write_bytes(content)
        directory.joinpath(name).write_bytes(value)
        read(directory)

    return check


def _parquet() -> bytes:
    file = BytesIO()
    pa.parquet.write_table(pa.table({"text": ["one", "two", None], "id": [1, 2, 3]}), file)
    return file.getvalue()


_COST_TABLE = {
    **{"padded": False, "floor_s": 1e-4, "alpha_s": 1e-4, "beta_s": 1e-6, "gamma_s": 1e-9},
    **{"sizes": [1.0, 8.0], "lengths": [4.0, 64.0], "factors": [[1.0, 1.1], [0.9, 1.0]]},
    "samples": [[8, 64, 8, 1, 1e-3]],
}
_REPORT = {
    **{
        "phase": "joined",
        "device": "cpu",
        "metrics_port": 9000,
        "group_id": "g",
        "member_id": "m",
        "failure": "",
    },
    "failure_is_of_device": False,
}
_MEASURED = {
    **{"table": _COST_TABLE, "checks": [[8, 64, 8, 1, 1e-3]], "measured_at": 1.7e9, "took_s": 9.0},
    **{"max_sequences": 256, "max_tokens": 1024},
}
_WEIGHTS = {"weight": np.zeros((2, 4), np.float32), "bias": np.zeros(2, np.float32)}
_CHECKPOINT: Mapping[str, bytes] = {
    "config.json": b'{"model_type": "bert", "hidden_size": 4}',
    "modules.json": b'[{"name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, '
    b'{"name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]',
    "model.safetensors": save(_WEIGHTS),
    "config_sentence_transformers.json": b'{"prompts": {"query": "q: ", "d": ""}, "default_prompt_name": "query"}',
    "sentence_bert_config.json": b'{"max_seq_length": 128}',
}
_INDEX = b'{"weight_map": {"weight": "part.safetensors", "bias": "part.safetensors"}}'
_HEAD = save(_WEIGHTS, metadata={"labels": '["a", "b"]', "scores": "sigmoid"})


def _read_shards(directory: Path) -> object:
    (directory / "model.safetensors").rename(directory / "part.safetensors")  # beside it, the index is not read
    return read_checkpoint(directory)


def _of_checkpoint(name: str, sample: bytes, read: Callable[[Path], object] = read_checkpoint) -> Decoder:
    """A file that `read_checkpoint` reads."""
    is_json = name.endswith(".json")
    mutations = (mutated_bytes, mutated_json) if is_json else (mutated_bytes,)
    return Decoder(name, [sample], _in_checkpoint(name, read), (EngineError,), mutations)


FILES = (
    Decoder("control socket", [json.dumps(_REPORT).encode()], _report, (), (mutated_bytes, mutated_json)),
    Decoder("cache row", [rows.seal(_KEY, b"an answer")], _cache_row),
    Decoder(
        "cost table", [json.dumps(_COST_TABLE).encode()], _cost_table, (CorruptTable,), (mutated_bytes, mutated_json)
    ),
    Decoder(
        "measured costs",
        [json.dumps(_MEASURED).encode()],
        _measured_costs,
        (CorruptTable,),
        (mutated_bytes, mutated_json),
    ),
    Decoder(
        "CSV", [b'id,text\n1,one\n2,"two, or\nthree"\n', b'text\n"a ""quoted"" word"\n'], _table("csv"), (TableError,)
    ),
    Decoder(
        "JSONL",
        [b'{"text": "one", "id": 1}\n{"text": "two"}\n', b'{"text": "\\ud83d\\ude00"}\n'],
        _table("jsonl"),
        (TableError,),
    ),
    Decoder("Parquet", [_parquet()], _table("parquet"), (TableError,)),
    Decoder(
        "access token", [b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJ3b3JrZXIifQ.\n", b"abc=="], _token(read_token), (NoToken,)
    ),
    Decoder(
        "token answer",
        [b'{"access_token": "abc.def", "token_type": "Bearer", "expires_in": 3600}'],
        _token(read_answer),
        (NoToken,),
        (mutated_bytes, mutated_json),
    ),
    *(_of_checkpoint(name, sample) for name, sample in _CHECKPOINT.items()),
    _of_checkpoint("model.safetensors.index.json", _INDEX, _read_shards),
    Decoder(
        "prompts",
        [_CHECKPOINT["config_sentence_transformers.json"]],
        _in_checkpoint("config_sentence_transformers.json", read_prompts),
        (ValueError,),
        (mutated_bytes, mutated_json),
    ),
    Decoder(
        "head",
        [_HEAD],
        _in_checkpoint("head.safetensors", lambda directory: linear_head(directory / "head.safetensors", 4)),
        (EngineError,),
    ),
)
