"""What devices can do, and what this process has used."""

from __future__ import annotations

import re
import resource

# dense peaks in TFLOP/s of (16-bit products, fp32 products without TF32), by a part of the device's name; the first
# that fits counts (vendors' data sheets)
PEAK_TFLOPS = {
    "H100 PCIe": (756.0, 51.0),
    "H100 NVL": (835.0, 60.0),
    "H200 NVL": (835.0, 60.0),
    "H200": (989.4, 67.0),
    "H100": (989.4, 67.0),
    "H800 PCIe": (756.0, 51.0),
    "H800": (989.4, 67.0),
    "A100": (312.0, 19.5),
    "A800": (312.0, 19.5),
    "L40S": (362.0, 91.6),
    "V100": (125.0, 15.7),
}


def peak_tflops_of(device_name: str, precision: str) -> float | None:
    """Returns the peak of a GPU by its name, in TFLOP/s of `train.precision`; None for a device whose peak is not
    listed: RTX A1000 is no A100, and a MIG instance has a part of one.
    """
    whole = "" if " MIG " in device_name else device_name
    peaks = next((peaks for part, peaks in PEAK_TFLOPS.items() if re.search(rf"{part}(?!\d)", whole)), None)
    return peaks and peaks[precision == "fp32"]


def peak_process_gib() -> float:
    """Returns largest resident memory of this process so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
