"""The precision that is chosen for a CPU."""

import pytest
import torch

from penstock.engine import device
from penstock.engine.cpu import ops
from penstock.engine.cpu.ops import cpu_precision
from penstock.engine.errors import UnsupportedDevice


@pytest.mark.parametrize(
    ("vendor", "avx512_bf16", "amx", "chosen"),
    [
        ("AuthenticAMD", True, False, "bfloat16"),
        ("GenuineIntel", True, True, "bfloat16"),
        ("GenuineIntel", True, False, "float32"),
        ("AuthenticAMD", False, False, "float32"),
        (None, True, False, "float32"),
    ],
)
def test_auto_is_bfloat16_where_that_is_the_faster(
    monkeypatch: pytest.MonkeyPatch, vendor: str | None, avx512_bf16: bool, amx: bool, chosen: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(device, "_cpuinfo", lambda: {} if vendor is None else {"vendor_id": vendor})
    assert cpu_precision("auto") == chosen


def test_bfloat16_is_refused_where_the_processor_has_no_products_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "multiplies_bfloat16", lambda: False)
    with pytest.raises(UnsupportedDevice, match="lacks; use auto"):
        cpu_precision("bfloat16")


def test_a_precision_that_is_not_for_cpus_is_rejected() -> None:
    with pytest.raises(UnsupportedDevice, match="float16"):
        cpu_precision("float16")
