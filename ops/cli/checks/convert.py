"""`penstock convert`: a copy of a checkpoint with safetensors in place of pickles."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.ops.cli.terminal import EXIT_OK, ends_with_code, say


@ends_with_code()
def convert(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a model.", show_default=False)],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="New directory.", show_default=False)],
) -> int:
    """Copy a checkpoint whose weights are pickles (*.bin) with safetensors in their place.

    $ penstock convert ./checkpoint ./converted

    Weights alone are read from the pickles: a file that would run code is
    refused. All other files are copied: head, modules, tokenizer. The copy is
    loaded before it appears as OUT, which must not exist.

    Exit code 0: OUT can be served. 1: it cannot be made, or not be served.
    """

    from penstock.engine.loading.conversion import convert  # imports torch

    for path in convert(source, target):
        say(f"Wrote {path}.")
    say(f"{target} can be served: penstock worker --model {target}", "green")
    return EXIT_OK
