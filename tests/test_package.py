"""The package as it is installed: what `import penstock` gives and costs, and its types outside the checkout."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import penstock
from penstock import producer


def test_its_names_are_those_of_the_clients_side() -> None:
    assert set(penstock.__all__) == {*producer.__all__, "__version__"}
    assert all(getattr(penstock, name) is getattr(producer, name) for name in producer.__all__)
    assert set(penstock.__all__) <= set(dir(penstock))
    assert penstock.__version__ == version("penstock")
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        penstock.Klient  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_loads_next_to_nothing() -> None:
    code = "import sys; before = set(sys.modules); import penstock; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert [name for name in done.stdout.split() if name.split(".")[0] not in sys.stdlib_module_names] == ["penstock"]


def test_python_m_penstock_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, cwd="/")
    assert done.stdout == f"penstock {version('penstock')}\n", done.stderr


USES = """
from typing import assert_type
import numpy as np
import numpy.typing as npt
from penstock import Classification, Client, Generation, SparseVector, SyncClient
from penstock.producer.errors import PenstockError

Client(timeout_s="x")  # arg-type
Client(bogus=1)  # call-arg
SyncClient(timeout_s="x")  # arg-type
SyncClient(model="m", bogus=1)  # call-arg

async def use(client: Client) -> None:
    await client.generate("a", num_beam=4)  # call-arg
    await client.generate("a", num_beams="4")  # arg-type
    client.stream("a", num_beam=4)  # call-arg
    await client.embed({"text": "a"})  # arg-type
    await client.embed(b"a")  # arg-type
    assert_type(await client.classify("a"), list[Classification])
    assert_type(await client.generate("a", num_beams=4, temperature=1), list[Generation])

def wait(client: SyncClient) -> None:
    client.generate("a", num_beam=4)  # call-arg
    client.stream("a", num_beam=4)  # call-arg
    client.embed({"text": "a"})  # arg-type
    client.embed("a", nomalize=True)  # call-arg
    assert_type(client.classify("a", top_k=3), list[Classification])
    assert_type(client.embed_sparse("a", top_k=3), list[SparseVector])
    for so_far in client.stream("a", num_beams=1):
        assert_type(so_far, Generation)

def errors() -> type[PenstockError]:
    return PenstockError
"""


@pytest.mark.slow
def test_types_are_found_outside_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text(USES)
    environment = {name: value for name, value in os.environ.items() if name not in ("MYPYPATH", "PYTHONPATH")}
    command = [sys.executable, "-m", "mypy", "--strict", "uses.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    found = re.findall(r"^uses\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    lines = enumerate(USES.splitlines(), 1)
    assert found == [(str(number), line.split("  # ")[1]) for number, line in lines if "  # " in line], done.stdout
