"""The optional packages of `penstock logs`."""

import importlib
import signal
import sys
from typing import Any

from penstock.ops.logs.errors import MissingLibrary


class Library:
    """A package that is imported when something of it is first used. Without it: MissingLibrary."""

    def __init__(self, name: str, needs_it: str) -> None:
        """`needs_it`: the subject of the sentence that says so."""
        self._name = name
        self._needs_it = needs_it

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules.get(self._name) or self._imported(), name)

    def _imported(self) -> Any:
        try:
            module = importlib.import_module(self._name)
        except ImportError as error:
            package = self._name.partition(".")[0]
            sentence = f"{self._needs_it} needs {package}, which is not installed: pip install 'penstock[logs]'"
            raise MissingLibrary(sentence) from error
        # The handler of polars would let a read of standard input go on, and Ctrl-C wait for the next line.
        signal.siginterrupt(signal.SIGINT, True)
        return module


pl = Library("polars", "Reading logs")
pyarrow = Library("pyarrow", "A compressed log")
matplotlib = Library("matplotlib", "A report")
pyplot = Library("matplotlib.pyplot", "A report")
