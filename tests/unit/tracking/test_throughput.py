"""Peaks of GPUs, which MFU is a fraction of."""

import pytest

from gpt1_ds.tracking.throughput import peak_tflops_of


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200 NVL", 835.0),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA RTX A1000 Laptop GPU", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA H20", None),
    ],
)
def test_a_gpu_has_the_peak_of_its_own_name(name: str, peak: float | None) -> None:
    assert peak_tflops_of(name, "bf16") == peak


def test_products_in_fp32_have_another_peak() -> None:
    assert peak_tflops_of("NVIDIA A100-SXM4-80GB", "fp32") == 19.5
