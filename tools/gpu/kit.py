"""What tools/gpu/pack.py packs for a machine without a package registry, and how it becomes usable there.

Imports the standard library alone: what everything else needs may be inside.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import mmap
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
KIT = Path(os.environ.get("GPT1_DS_KIT", ROOT / ".gpu"))  # ignored by git; it travels with the checkout
WHEELS, DATA, TASKS, REFERENCE = "whl", "data.tar.xz", "tasks.tar.xz", "cpu_losses.json"  # in it


PLACES = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # after $TMPDIR
FREE_BYTES = 2 << 30  # of the place for wheels, kernels and data


class KitError(Exception):
    """One line for a person; exit code 2."""


def work_folder() -> Path:
    """Returns a private folder for what outlives a command: installed wheels, compiled kernels, data. Raises KitError
    where no place fits, or somebody else has its name there.
    """
    folder = _place() / f"gpt1-ds-gpu-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise KitError(f"{folder}: {error.strerror}; export TMPDIR=...") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise KitError(f"{folder}: not a folder of yours alone; remove it, or export TMPDIR=...")
    return folder


def _place() -> Path:
    """Returns the first folder with enough free space that programs may be run from. Raises KitError where none is."""
    own = ROOT / ".gpu-work"  # ignored by git
    named = os.environ.get("TMPDIR")
    places = [*([Path(named)] if named else []), *PLACES, own]
    for place in places:
        try:
            if place == own:
                own.mkdir(exist_ok=True)
            if shutil.disk_usage(place).free >= FREE_BYTES and _is_executable(place):
                return place
        except OSError:
            continue
    tried = ", ".join(map(str, places))
    raise KitError(f"{tried}: none has {FREE_BYTES >> 30} GB and may hold programs; export TMPDIR=...")


def _is_executable(place: Path) -> bool:
    """Returns whether a file in `place` can be mapped as code, which `noexec` forbids. Raises OSError where no file can
    be made.
    """
    with tempfile.TemporaryFile(dir=place) as file:
        file.write(b"\0" * mmap.PAGESIZE)
        file.flush()
        try:
            mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
        except PermissionError:
            return False
    return True


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses (default: cuda)")
    parser.add_argument("--tiny", action="store_true", help="tiny models: that it works, not how fast")


def output_folder(default: str) -> Path:
    """Returns $OUT, or `default` in the current folder. Raises KitError where it cannot be made."""
    out = Path(os.environ.get("OUT") or default).absolute()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KitError(f"OUT={out}: {error.strerror}; name a folder that can be written") from None
    return out


def prepare(work: Path, device: str) -> None:
    """Lets this process and those that it starts find the libraries, the checkout and caches that outlive them. Raises
    KitError where a library is missing and was not packed.
    """
    site = work / f"site-{sys.version_info.major}.{sys.version_info.minor}"
    if list(_lacking()):
        install(site)
    places = [str(ROOT), *([str(site)] if site.exists() else [])]
    sys.path[:0] = places
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *([before] if before else [])])
    for name in REQUIRED:
        if importlib.util.find_spec(name) is None:
            raise KitError(f"{name} is not installed: bash tools/setup.sh, or pack it: python tools/gpu/pack.py")
    variables = {
        "PYTHONUNBUFFERED": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        "TRITON_CACHE_DIR": str(work / "triton"),
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",  # one machine, whose other interfaces may lead nowhere
        "NCCL_SOCKET_IFNAME": "lo",
    }
    if not os.access(os.environ.get("HOME", "/"), os.W_OK):
        variables["XDG_CACHE_HOME"] = str(work / "cache")
    if device == "cuda":
        variables["OMP_NUM_THREADS"] = "4"
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    os.environ["TMPDIR"] = str(work.parent)  # where programs may be kept, which compilers need, too


REQUIRED = ("torch", "deepspeed", "megatron", "omegaconf", "sentencepiece", "tokenizers", "safetensors")


def packed_wheels() -> list[Path]:
    return sorted((KIT / WHEELS).glob("*.whl"))


def _lacking() -> Iterator[str]:
    """Yields the packed wheels whose package is not here, or is older."""
    for wheel in packed_wheels():
        name, version = wheel.name.split("-")[:2]
        try:
            if _numbers(importlib.metadata.version(name)) < _numbers(version):
                yield wheel.name
        except importlib.metadata.PackageNotFoundError:
            yield wheel.name


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())


def install(site: Path) -> None:
    """Installs the packed wheels into `site`, unless they are there. Raises KitError where pip refuses them."""
    wheels = packed_wheels()
    stamp, wanted = site / "packed.txt", "\n".join(wheel.name for wheel in wheels)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    arguments = ["install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade"]
    command = [sys.executable, "-m", "pip", *arguments, "--target", str(site), *map(str, wheels)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise KitError(f"{KIT / WHEELS}: not installed for Python {sys.version.split()[0]}: {last}")
    folders = [str(site), str(ROOT / "gpt1_ds"), str(ROOT / "tools")]  # pip compiles on one core
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", *folders], capture_output=True)
    stamp.write_text(wanted)


def unpack(name: str, into: Path) -> Path | None:
    """Returns the folder `into` with what the packed archive holds, unpacked once; None where none was packed."""
    archive = KIT / name
    if not archive.exists():
        return None
    if not into.exists():
        part = into.with_name(f"{into.name}.part")
        with tarfile.open(archive) as packed:
            packed.extractall(part, filter="data")
        part.rename(into)
    return into
