"""The comparison of two versions on one screen."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.ops.logs.text import count, printable
from penstock.ops.parity.drift import Drift, Version
from penstock.ops.parity.drift_measures import LabelDrift, ScoreDrift, VectorDrift

_COUNTS = {  # of a version
    "records read": "records",
    "keys in the sample": "keys",
    "answers": "answers",
    "tombstones": "tombstones",
    "without an answer": "unanswered",
    "missing keys": "missing",
}
_SHOWN_FLOWS = 10
_SHOWN_MODELS = 3
_LABEL_CHARS = 40
_REVISION_CHARS = 16


def show_drift(found: Drift, missed: Sequence[str], *, is_bounded: bool) -> None:
    """Print it on stdout. Names and labels come from records: their control characters are replaced."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(_of_versions(found.versions))
    console.print()
    console.print(_of_keys(found))
    console.print()
    console.print(_of_answers(found.measured))
    if found.worst is not None:
        console.print(f"farthest apart: {printable(found.worst[0])} and {printable(found.worst[1])}", style="dim")
    if not is_bounded:
        return
    console.print()
    for sentence in missed:
        console.print(sentence, style="bold red")
    if not missed:
        console.print("Within the bounds.", style="green")


def _of_versions(versions: tuple[Version, Version]) -> Table:
    table = Table("", "A", "B", box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    table.columns[0].style = "dim"
    for column in table.columns[1:]:
        column.overflow = "fold"
    table.add_row("", *[printable(one.name) for one in versions])
    if any(one.models for one in versions):
        table.add_row("models", *["\n".join(_models(one)) for one in versions])
    for name, attribute in _COUNTS.items():
        table.add_row(name, *[f"{getattr(one, attribute):,}" for one in versions])
    return table


def _models(version: Version) -> Iterator[str]:
    for model, revision, records in version.models[:_SHOWN_MODELS]:
        name = printable(f"{model} {revision[:_REVISION_CHARS]}".strip())
        yield f"{name} ({records:,})" if len(version.models) > 1 else name
    if len(version.models) > _SHOWN_MODELS:
        yield f"and {len(version.models) - _SHOWN_MODELS:,} more"


def _of_keys(found: Drift) -> Text:
    line = Text(f"{count(found.pairs, 'pair')} compared, of {count(found.keys, 'key')} in the sample.")
    notes = [f"Without an answer: {one.example}." for one in found.versions if one.example]
    if found.other_example:
        places = " and ".join(found.other_example)
        notes.append(f"{count(found.other_inputs, 'pair')} not compared, whose inputs differ, such as {places}.")
    for note in notes:
        line.append(f"\n{printable(note)}", style="yellow")
    return line


def _of_answers(found: LabelDrift | VectorDrift | ScoreDrift) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for row in _rows(found):
        table.add_row(*row)
    return table


def _rows(found: LabelDrift | VectorDrift | ScoreDrift) -> Iterator[tuple[str, str, str]]:
    match found:
        case LabelDrift():
            yield "labels that differ", f"{found.share:.2%}", f"{count(found.changed, 'pair')}"
            for flow in found.flows[:_SHOWN_FLOWS]:
                yield "", f"{flow.count:,}", f"{_label(flow.before)} → {_label(flow.after)}"
            if len(found.flows) > _SHOWN_FLOWS:
                others = found.flows[_SHOWN_FLOWS:]
                yield "", f"{sum(flow.count for flow in others):,}", f"between {len(others):,} other pairs of labels"
        case VectorDrift():
            yield from _of_vectors(found)
        case ScoreDrift():
            rho = "none" if found.spearman is None else f"{found.spearman:.4f}"
            yield "rank correlation", rho, "all scores of a version are equal" * (found.spearman is None)
            yield "median move", f"{found.median_move:,g}", "ranks"
            yield "largest move", f"{found.largest_move:,g}", "ranks"


def _of_vectors(found: VectorDrift) -> Iterator[tuple[str, str, str]]:
    if found.cosine is None:
        yield "cosine", "none", "{:,} and {:,} dimensions".format(*found.dimensions)
    else:
        names = {"least cosine": found.cosine.min, "1st percentile": found.cosine.p1}
        for name, value in {**names, "median": found.cosine.median, "mean": found.cosine.mean}.items():
            yield name, f"{value:.6f}", ""
    if found.overlap is not None:
        yield "common neighbours", f"{found.overlap:.1%}", f"of the {found.nearest} nearest of a vector"


def _label(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= _LABEL_CHARS else f"{shown[:_LABEL_CHARS]}…"
