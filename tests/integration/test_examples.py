"""The clients of ops/examples, each built and run as its page says, against one worker behind the real broker."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from aiokafka.admin import NewTopic

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from tests.engine.model.test_reference_vectors import save_bge_m3
from tests.integration.conftest import StartWorker, WorkerProcess, open_admin

EXAMPLES = Path(__file__).parents[2] / "ops" / "examples"
MODEL, THREE_KINDS = "examples", "three-kinds"
TEXTS = ["My card is lost", "I cannot find my card ☹", "What is the exchange rate?"]
SHORT_TEXTS = ["card lost", "my card is lost", "card ☹", "rate?"]  # of a model of a few tokens
# For each language: the tool that builds it, the commands that build it, and the command that runs it.
CLIENTS = {
    "java": ("mvn", [["mvn", "-q", "-B", "package"]], ["java", "-jar", "target/embed.jar"]),
    "go": ("go", [["go", "build", "-o", "embed", "."]], ["./embed"]),
    "node": ("npm", [["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]], ["node", "embed.js"]),
}

BUILD_S = 360.0  # the first build downloads its dependencies


@pytest.fixture(scope="module")
def servers(kafka: KafkaBroker, minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Servers of the broker, with a worker that serves all-MiniLM-L6-v2 in float32."""
    log_path = tmp_path_factory.mktemp("examples") / "worker.log"
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "model": minilm, "served_name": MODEL, "dtype": "float32"}
    with WorkerProcess(log_path, settings) as worker:
        asyncio.run(worker.ready())
        yield kafka.bootstrap_servers


@pytest.fixture(scope="module")
def three_kinds(servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """With a worker of a model that has sparse vectors and vectors of tokens: a task's lines, as of `expected`."""
    folder = tmp_path_factory.mktemp("three-kinds")
    settings = {"bootstrap_servers": servers, "model": save_bge_m3(folder), "served_name": THREE_KINDS}

    async def lines(task: str) -> str:
        async with Client(bootstrap_servers=servers, model=THREE_KINDS) as client:
            if task == "embed_tokens":
                first, *_ = rows = [matrix.astype(float) for matrix in await client.embed_tokens(SHORT_TEXTS)]
                found = [(first @ row.T).max(axis=1).sum() for row in rows]
            else:
                weights = [
                    dict(zip(*map(np.ndarray.tolist, row), strict=True))
                    for row in await client.embed_sparse(SHORT_TEXTS)
                ]
                found = [sum(weight * row.get(token, 0.0) for token, weight in weights[0].items()) for row in weights]
        return "".join(f"{one:.3f}  {text}\n" for one, text in zip(found, SHORT_TEXTS, strict=True))

    with WorkerProcess(folder / "worker.log", {**settings, "dtype": "float32"}) as worker:
        asyncio.run(worker.ready())
        yield lambda task: asyncio.run(lines(task))


@pytest.fixture(scope="module")
def expected(servers: str) -> str:
    """Lines that a client prints for TEXTS: the cosine similarity of each text to the first."""

    async def lines() -> list[str]:
        async with Client(bootstrap_servers=servers, model=MODEL) as client:
            vectors = await client.embed(TEXTS, normalize=True)
        return [f"{vector @ vectors[0]:.3f}  {text}\n" for vector, text in zip(vectors, TEXTS, strict=True)]

    return "".join(asyncio.run(lines()))


def run(
    command: list[str], folder: Path, stdin: str = "", timeout_s: float = 300.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=folder, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=environment
    )


def built(language: str) -> Path:
    """A copy of the example with its build beside it, in a cache folder named after the example's contents."""
    tool, commands, _ = CLIENTS[language]
    if shutil.which(tool) is None:
        missing = f"{tool} is not installed, which builds ops/examples/{language}"
        if language == "java" and os.environ.get("CI") == "true":
            pytest.fail(f"CI must run the Java example, but {missing}.")
        pytest.skip(missing)
    source = EXAMPLES / language
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(source)}\0".encode() + path.read_bytes() + b"\0")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "examples"
    target = cache / f"{language}-{digest.hexdigest()[:12]}"
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{language}-", dir=cache) as scratch:
            folder = shutil.copytree(source, Path(scratch, language))
            for command in commands:
                done = run(command, folder, timeout_s=BUILD_S)
                assert done.returncode == 0, done.stdout + done.stderr
            try:
                folder.rename(target)
            except OSError:  # "Directory not empty": another process built the same
                if not target.is_dir():
                    raise
    return target


@pytest.mark.parametrize("language", CLIENTS)
def test_a_client_in_another_language_prints_the_same_similarities(language: str, servers: str, expected: str) -> None:
    done = run([*CLIENTS[language][2], servers, MODEL, *TEXTS], built(language))
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


@pytest.mark.parametrize("task", ["embed_sparse", "embed_tokens"])
@pytest.mark.parametrize("language", CLIENTS)
def test_a_client_in_another_language_reads_sparse_vectors_and_vectors_of_tokens(
    language: str, task: str, servers: str, three_kinds: Callable[[str], str]
) -> None:
    done = run([*CLIENTS[language][2], servers, THREE_KINDS, *SHORT_TEXTS], built(language), TASK=task)
    assert done.returncode == 0, done.stderr
    assert done.stdout == three_kinds(task)


@pytest.mark.parametrize("language", CLIENTS)
def test_a_client_in_another_language_reports_an_error_reply(language: str, servers: str, expected: str) -> None:
    """`expected` is here for its client, which has created the reply topic."""
    done = run([*CLIENTS[language][2], servers, MODEL, "a text", " "], built(language))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("empty: ")


def test_the_python_service_routes_each_message_and_reports_the_one_that_fails(servers: str) -> None:
    routes = ["lost or stolen card", "exchange rate", "forgotten password"]
    messages = ["Someone took my card!", "", "How many dollars do I get for a euro?", "I cannot log in"]
    command = [sys.executable, "service.py", servers, MODEL, *routes]
    done = run(command, EXAMPLES / "python", stdin="\n".join(messages) + "\n")
    assert done.returncode == 0, done.stderr
    card, empty, rate, password = done.stdout.splitlines()
    assert card[5:] == f"  {routes[0]}: {messages[0]}"
    assert empty == "empty: ''"
    assert rate[5:] == f"  {routes[1]}: {messages[2]}"
    assert password[5:] == f"  {routes[2]}: {messages[3]}"


def test_a_client_that_knows_json_and_kafka_alone_prints_the_same_similarities(servers: str, expected: str) -> None:
    command = [sys.executable, "ask.py", servers, MODEL]
    done = run([*command, *TEXTS], EXAMPLES / "json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    refused = run([*command, "a text", " "], EXAMPLES / "json")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("empty: ")


async def test_the_route_enriches_what_its_clients_send_as_json(
    kafka: KafkaBroker, minilm: Path, start_worker: StartWorker
) -> None:
    folder = EXAMPLES / "route"
    async with open_admin(kafka) as admin:
        await admin.create_topics([NewTopic("support.messages", 2, 1)])
    await start_worker(kafka, model=minilm, config=folder / "penstock.toml").ready()
    messages = [
        {"id": 1, "subject": "Card lost", "body": "I cannot find my card."},
        {"id": 2, "subject": "Rates", "body": "How many dollars do I get for a euro?"},
        {"id": 3, "subject": "Card stolen", "body": "Someone took my card!"},
    ]
    lines = "".join(f"{json.dumps(one)}\n" for one in messages)
    done = await asyncio.to_thread(run, [sys.executable, "support.py", kafka.bootstrap_servers], folder, lines)
    assert done.returncode == 0, done.stderr
    lost, rates, stolen = done.stdout.splitlines()
    assert lost == "1.000  Card lost"
    assert float(rates[:5]) < float(stolen[:5])
    assert (rates[7:], stolen[7:]) == ("Rates", "Card stolen")
