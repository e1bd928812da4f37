"""`penstock parity`: whether a checkpoint computes here what it computes in transformers."""

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from penstock.ops.cli.options import takes
from penstock.ops.cli.screen import EXIT_OK, EXIT_PROBLEM, say, stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.ops.parity import Agreement, Check, Runtime
