"""What devices can do, and what this process has used."""

from __future__ import annotations

import resource

# bf16 dense peak in TFLOP/s by a part of the device's name (vendors' data sheets)
PEAK_TFLOPS = {"H200": 989.4, "H100": 989.4, "H800": 989.4, "A100": 312.0, "A800": 312.0, "L40S": 362.0, "V100": 125.0}


def peak_tflops(device_name: str) -> float | None:
    """bf16 peak of a GPU by its name; None for a device whose peak is not listed."""
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in device_name), None)


def peak_process_gib() -> float:
    """Largest resident memory of this process so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
