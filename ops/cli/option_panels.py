"""The panels of `--help`: settings of one purpose stand together."""

from collections.abc import Iterable, Sequence
from typing import Any

import typer.rich_utils
from rich.table import Table
from rich.text import Text

# Panel -> its settings, by name or by the beginning of the name. The first match counts. Others are under "Options".
_PANELS = {
    "Model": "model served_name cells state_slots page_memory_mib head dtype device engine pooling cost_path",
    "Members": "processes gpus mps standby lanes",
    "Batching and deadlines": "trigger max_wait_ms partition order admission slo_ms bulk_slice_ms max_batch_sequences "
    "max_batch_tokens",
    "Route": "input_topic output_topic record_format output_format text task query request_options chunk_tokens "
    "chunk_overlap chunk_output result_field revision_field missing_text route_class max_age_ms accept_replays",
    "Schema registry": "schema_registry_",
    "Kafka": "bootstrap_servers topic reply_topic reply_topics group_id partitions fetch_ max_in_flight max_sequences "
    "max_reply_bytes",
    "Delivery": "delivery transaction_ drain_s once isolation_level",
    "Cache": "cache_",
    "Logs and metrics": "log_ metrics_",
    "Security": "security_protocol sasl_ ssl_",
}
_NUM_NAMES = 4  # columns in which typer has the names of an option


def panel_of(setting: str) -> str | None:
    """The panel of a setting's option; None: it is under "Options"."""
    for panel, names in _PANELS.items():
        if any(setting == name or (name.endswith("_") and setting.startswith(name)) for name in names.split()):
            return panel
    return None


def in_panels(settings: Iterable[str]) -> list[str]:
    """Settings in the order of the help: those without a panel, then the panels in their order."""
    order = [None, *_PANELS]
    return sorted(settings, key=lambda setting: order.index(panel_of(setting)))


class UncutTable(Table):
    """A table of options or commands that cuts nothing: the descriptions are wrapped, and given room."""

    def add_row(self, *cells: Any, **named: Any) -> None:
        *beside, description = cells
        super().add_row(*_stacked(beside), description, **named)
        for column in self.columns[:-1]:
            column.no_wrap = True
        for text in getattr(description, "renderables", [description]):
            text.overflow = "fold"  # of a word that is wider than the column


def _stacked(cells: Sequence[Any]) -> Sequence[Any]:
    """The cells beside an option's description, with its names under each other: long, short, and those with "no"."""
    if len(cells) <= _NUM_NAMES:  # of a command
        return cells
    required, names, kind = cells[: -_NUM_NAMES - 1], cells[-_NUM_NAMES - 1 : -1], cells[-1]
    return *required, Text("\n").join(name for name in names if name), kind


setattr(typer.rich_utils, "Table", UncutTable)  # noqa: B010  # typer has no setting for it, and does not export the name
