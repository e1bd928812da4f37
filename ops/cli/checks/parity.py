"""`penstock parity`: compare a checkpoint's answers here with those of sentence-transformers and transformers."""

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field
from rich.console import Console
from rich.text import Text as StyledText

from penstock.engine.model.model_place import local_directory
from penstock.engine.types import ENTAIL
from penstock.ops.cli.checks.progress_bar import progress_bar
from penstock.ops.cli.dead_letters.dead_letter import LocalRecord
from penstock.ops.cli.setting_options import takes
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, BadUsage, fail, narrate_logs, say
from penstock.producer.settings_sources import Settings
from penstock.worker.kafka.kafka_record import NO_TOPIC_ID

if TYPE_CHECKING:
    from penstock.ops.cli.dead_letters.answerer import Answerer
    from penstock.ops.parity.compare import Ask, Check, Loss
    from penstock.ops.parity.references import Reference
    from penstock.producer.wire.messages import Options, Row, Text

MODEL_HELP = "Checkpoint: a directory, or a Hugging Face id. Only safetensors are read; no code of it is run."
_LARGEST_REPLY_BYTES = 64 << 20  # that the wire allows: all labels of all tokens of a long text
_SHOWN_REFUSALS = 5


class ParitySettings(Settings):
    """Settings of the comparison."""

    dtype: Literal["auto", "auto-int8", "float32", "bfloat16", "float16", "int8"] = Field(
        "auto",
        description="Arithmetic of penstock's side. auto, auto-int8: as a worker on this machine. A GPU has no "
        "float32, and only Hopper int8; a CPU has no float16.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where both sides run. auto: on a GPU if there is one and CuPy is installed."
    )
    reference: str | None = Field(
        None,
        description="The checkpoint that the reference loads, if MODEL is a converted copy of it. Default: MODEL.",
    )
    texts: Path | None = Field(
        None,
        description="File of the texts: .csv, .jsonl or .parquet, or a text a line. Default: a built-in set, with "
        "special tokens within texts, cases, accents, scripts, blanks, many lengths and one beyond the limit.",
    )
    column: str = Field("text", description="Column or key of the texts in FILE.")


@takes(ParitySettings)
def parity(
    settings: ParitySettings,
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON, on stdout.")] = False,
) -> int:
    """Compare a checkpoint's answers with those of sentence-transformers and transformers. Needs no Kafka.

    $ penstock parity ./checkpoint

    Texts go through all that a worker does to a request: prompts, tokenizer,
    limits, model and head. The reference answers the same texts on the same
    directory, in float32: encode of SentenceTransformer, SparseEncoder or
    MultiVectorEncoder, CrossEncoder.predict, a pipeline of transformers, or
    generate, by what the checkpoint is; of natural language inference also with
    labels in the request. It needs sentence-transformers:
    pip install 'penstock[parity]'.

    Each line compares each text alone, or all together in one request. The
    distance is the length of the difference of two vectors, divided by the
    length of the reference's; of a vector for each token the largest; of scores
    and sparse weights the largest difference. In 16-bit arithmetic, twice what
    transformers loses in it passes too; in int8 a cosine of 0.999 passes, and
    transformers in bfloat16 stands beside it. The report also has how many of the
    ten nearest neighbours are kept and how many texts have another label, here
    and in parentheses there.

    A text that one side refuses is reported with its reason, and not compared;
    so is a task to which the reference has no answer, such as embed_sparse of
    bge-m3.

    Exit code 0: all passed. 1: a line missed, the checkpoint cannot be run, or
    there is no reference.
    """
    narrate_logs("")
    return asyncio.run(_compare(settings, model, as_json=as_json))


async def _compare(settings: ParitySettings, model: str, *, as_json: bool) -> int:
    local_directory(model)  # before the imports, which take seconds
    if find_spec("torch") is None:
        fail("This needs torch and sentence-transformers, which are not installed: pip install 'penstock[parity]'")
        return EXIT_PROBLEM
    _quieten_transformers()
    import torch

    from penstock.engine.model.checkpoint import resolve_model
    from penstock.ops.cli.dead_letters.answerer import open_answerer
    from penstock.ops.parity.compare import Check
    from penstock.ops.parity.references import NoReferenceError, references
    from penstock.worker.model_settings import ModelSettings
    from penstock.worker.settings import RequestSettings

    say("Loading the checkpoint here and in the reference ...", style="dim")
    directory = resolve_model(model)
    original = directory if settings.reference is None else resolve_model(settings.reference)
    here = ModelSettings.model_validate({"model": str(directory), "dtype": settings.dtype, "device": settings.device})
    bounds = RequestSettings.model_validate({"max_reply_bytes": _LARGEST_REPLY_BYTES})
    async with open_answerer(here, bounds) as answerer:
        info = answerer.info
        device = "cpu" if info.device == "cpu" else "cuda"
        try:
            exact = references(original, torch.float32, device)
            beside: Sequence[Reference | None] = [None] * len(exact)
            if info.dtype != "float32":  # transformers has no int8; bfloat16 is what it would be used in place of
                other_dtype = "bfloat16" if info.dtype == "int8" else info.dtype
                beside = references(original, getattr(torch, other_dtype), device)
        except NoReferenceError as error:
            fail(f"{error} Here it is served by {' and '.join(info.request_tasks)}.")
            return EXIT_PROBLEM
        checks: list[Check] = []
        for reference, other in zip(exact, beside, strict=True):
            checks += [check async for check in _checks(settings, answerer, reference, other)]
        answered = {call.task for reference in exact for call in reference.calls}
    names = " and ".join(reference.name for reference in exact)
    passed = all(check.passed for check in checks)
    others = [task for task in info.request_tasks if task not in answered]
    if as_json:
        report = {"model": model, "dtype": info.dtype, "device": info.device, "reference": names, "passed": passed}
        lines = [asdict(check) | {"passed": check.passed} for check in checks]
        print(json.dumps(report | {"wider_layers": info.wider_layers, "not_compared": others, "checks": lines}))
    else:
        no_reference = f"{', '.join(others)}: not compared: {names} has no such answer" if others else ""
        head = f"{model}, {info.dtype} on {info.device}, beside {names} in float32"
        if info.wider_layers:
            head += f"\nIn more bits: {', '.join(info.wider_layers)}"
        _show(checks, head, info.dtype, no_reference)
    return EXIT_OK if passed else EXIT_PROBLEM


async def _checks(
    settings: ParitySettings, answerer: "Answerer", reference: "Reference", beside: "Reference | None"
) -> AsyncIterator["Check"]:
    from penstock.ops.parity.compare import Check, Comparison, num_tokens
    from penstock.ops.parity.texts import read_texts
    from penstock.producer.files import TableError
    from penstock.worker.built_in_texts import built_in_texts

    if settings.texts is None:
        special = reference.tokenizer.all_special_tokens
        texts = built_in_texts(special, lambda text: num_tokens(reference, text), reference.limit)
    else:
        try:
            texts = read_texts(settings.texts, settings.column)
        except TableError as error:
            raise BadUsage(f"--texts: {error}") from error
    comparison = Comparison(_asker(answerer), answerer.info.dtype, reference, beside, texts)
    calls = reference.calls
    with progress_bar("Comparing texts") as show:
        num_done, total = itertools.count(1), len(calls) * len(texts)

        def done() -> None:
            show(next(num_done), total)

        for call in calls:
            if (call.task if call.labels is None else ENTAIL) not in answerer.info.tasks:
                yield Check(call.what, 0, fault=f"{reference.name} answers it, and penstock does not")
                continue
            async for check in comparison.run(call, done):
                yield check
        of_texts = not calls[0].of_pairs and calls[0].labels is None
        has_one_limit = reference.limit is not None and calls[0].task != "embed_tokens"  # queries have another
        if has_one_limit and of_texts and calls[0].task in answerer.info.tasks:
            yield await comparison.limits(calls[0])


def _asker(answerer: "Answerer") -> "Ask":
    """Asks by the bytes of a record, as a client does, and reads the bytes of its reply."""
    from penstock.producer.wire.codec import decode_reply, encode_request
    from penstock.producer.wire.headers import REPLY_TOPIC
    from penstock.producer.wire.messages import Reply, Request
    from penstock.producer.wire.topics import REPLY_TOPIC as REPLIES

    offsets = itertools.count()

    async def ask(task: str, texts: "Sequence[Text]", options: "Options") -> "Sequence[Row]":
        value = encode_request(Request(answerer.served_name, task, text=tuple(texts), options=options))
        headers = [(REPLY_TOPIC, REPLIES.encode())]
        record = LocalRecord("parity", 0, next(offsets), 0, None, value, headers)
        reply = decode_reply((await answerer.answer(record, NO_TOPIC_ID, bulk=False)).value)
        if not isinstance(reply, Reply):
            raise reply.exception()
        return reply.rows(task)

    return ask


def _show(checks: "Sequence[Check]", head: str, dtype: str, no_reference: str) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    width = max(len(check.what) for check in checks)
    console.print(head)
    console.print()
    console.print(f"{'':<{width}}  texts   cos min  cos mean  distance     bound  worst text", style="dim")
    for check in checks:
        console.print(_line(check, width, dtype))
    console.print()
    for reason in _refusals(checks):
        console.print(reason, style="yellow")
    if no_reference:
        console.print(no_reference, style="yellow")
    missed = [check for check in checks if not check.passed]
    if not missed:
        console.print("It agrees.", style="green")
        return
    console.print(f"It does not agree: {len(missed)} of {len(checks)} lines missed.", style="bold red")
    for check in missed:
        console.print(f"{check.what}: {check.fault or _missed_by(check)}.")


def _missed_by(check: "Check") -> str:
    return f"a distance of {check.distance:.1e} at text {check.worst}; at most {check.bound:.1e} passes"


def _line(check: "Check", width: int, dtype: str) -> StyledText:
    least, mean = ("" if cosine is None else f"{cosine:.6f}" for cosine in (check.cosine_min, check.cosine_mean))
    worst = "" if check.worst is None else str(check.worst)
    numbers = f"{check.distance:9.1e} {check.bound:9.1e}" if check.worst is not None else " " * 19
    line = StyledText(f"{check.what:<{width}}  {check.num_texts:>5,}  {least:>8}  {mean:>8} {numbers}  {worst:>10}")
    if check.theirs is not None:
        smallest = check.theirs.cosine_min
        cosines = [] if smallest is None else [f"cos min {smallest:.6f}"]
        theirs = ", ".join([f"{check.theirs.distance:.1e}", *cosines, *_changes(check.theirs)])
        line.append(f"  (transformers in {'bfloat16' if dtype == 'int8' else dtype}: {theirs})", style="dim")
    line.append("".join([f"  {change}" for change in _changes(check)]), style="dim")
    return line if check.passed else line.append(" missed", style="bold red")


def _changes(loss: "Check | Loss") -> Iterator[str]:
    if loss.kept is not None:
        yield f"{loss.kept:.1%} of neighbours kept"
    if loss.labels_changed is not None:
        yield f"{loss.labels_changed} labels changed"


def _refusals(checks: "Sequence[Check]") -> Iterator[str]:
    """Each reason once, with the texts that it concerns."""
    texts: dict[tuple[str, str], list[int]] = {}
    for check in checks:
        for index, reason in check.refused.items():
            texts.setdefault((check.what, reason), []).append(index)
    for (what, reason), indices in itertools.islice(texts.items(), _SHOWN_REFUSALS):
        yield f"{what}: not compared: text {', '.join(map(str, indices))}: {reason}"
    if len(texts) > _SHOWN_REFUSALS:
        yield f"{len(texts) - _SHOWN_REFUSALS} more reasons: --json shows them."


def _quieten_transformers() -> None:
    """Silence progress bars, and warnings about heads that the comparison does not use."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers
    for name in ("transformers", "sentence_transformers"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
