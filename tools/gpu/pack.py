"""Packs into .gpu/ what a bare GPU machine lacks: wheels, a dataset, tasks and the losses of a CPU.

    python tools/gpu/pack.py [--text PATH...] [--tasks FOLDER] [--vocab-size 8000] [--python 3.12]

For a machine that has torch, transformers and pytest but no package registry: the folder travels with the checkout, and
tools/gpu/contact.sh installs what is in it. --text (files or folders, one document a file) becomes a tokenizer and a
dataset; --tasks is the folder that holds the tasks of tools/gpu/science.sh. What is packed already is not packed again.
Everything that travels is counted; 60 MiB or more are refused.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpt1_ds.common.errors import UserError
from gpt1_ds.common.files import read_json, write_json
from tools.gpu import kit
from tools.gpu.science import TASKS

MOST_BYTES = 60 << 20
# what the machine lacks, or has in a version that is too old; those of BUILT have no wheels, and are Python alone
PACKAGES = (
    *("hjson", "pydantic", "pydantic_core", "annotated_types", "typing_inspection", "typing_extensions", "omegaconf"),
    *("megatron_core", "zstandard", "sentencepiece"),
    *("nltk", "absl_py", "six", "joblib", "click", "defusedxml"),  # for rouge_score, which scores written answers
)
BUILT = ("deepspeed", "rouge_score")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux1")
STAMPS = "packed.json"  # in the kit: what each archive was made of
HELD_OUT = "0.02"  # of the text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", metavar="PATH", help="text to train on (default: no dataset)")
    parser.add_argument("--tasks", type=Path, metavar="FOLDER", help=f"holds {', '.join(TASKS)} (default: no tasks)")
    parser.add_argument("--vocab-size", type=int, default=8000, metavar="N")
    parser.add_argument("--python", default="3.12", metavar="X.Y", help="of the GPU machine (default: %(default)s)")
    options = parser.parse_args()
    try:
        kit.KIT.mkdir(parents=True, exist_ok=True)
        pack_wheels(kit.KIT / kit.WHEELS, options.python)
        if options.text:
            pack_data(options.text, options.vocab_size)
        if options.tasks:
            pack_tasks(options.tasks)
        _run(sys.executable, str(Path(__file__).with_name("reference.py")), str(kit.KIT / kit.REFERENCE))
        found = sizes(kit.ROOT, kit.KIT)
        print(*(f"{size / 2**20:8.2f} MiB  {name}" for name, size in found.items()), sep="\n")
        check(found)
    except (UserError, kit.KitError) as error:
        print(f"pack.py: {error}", file=sys.stderr)
        return 2
    return 0


def version_of(package: str) -> str:
    """Returns the version in tools/constraints.txt, else the installed one. Raises UserError where there is none."""
    name = package.replace("_", "-")
    for line in (kit.ROOT / "tools" / "constraints.txt").read_text().splitlines():
        if line.startswith(f"{name}=="):
            return line.partition("==")[2]
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"{name}: not installed here, so its version is not known; bash tools/setup.sh") from None


def pack_wheels(folder: Path, python: str) -> None:
    """Downloads the wheels for Linux on x86-64, and builds those of BUILT; those that are there already are kept."""
    folder.mkdir(exist_ok=True)
    wanted = {name: version_of(name) for name in (*PACKAGES, *BUILT)}
    for wheel in folder.glob("*.whl"):
        name, version, *_, tag, _abi, _platform = wheel.stem.split("-")
        if wanted.get(name) != version or tag not in (f"cp{python.replace('.', '')}", "py3", "py2.py3"):
            wheel.unlink()
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    platforms = [argument for name in PLATFORMS for argument in ("--platform", f"{name}_x86_64")]
    for name, version in wanted.items():
        if list(folder.glob(f"{name}-*.whl")):
            continue
        one = f"{name}=={version}"
        if name in BUILT:
            built = ("wheel", "--no-deps", "--no-build-isolation", "--no-binary", name, "--wheel-dir", str(folder), one)
            _run(*pip, *built, DS_BUILD_OPS="0", CUDA_VISIBLE_DEVICES="")
        else:
            found = ("--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python)
            _run(*pip, "download", *found, *platforms, "--dest", str(folder), one)


def pack_data(text: Sequence[Path], vocab_size: int) -> None:
    """Makes a tokenizer and a dataset of `text`, hard-wrapped or not, and packs the dataset."""
    files = _files(text)
    if not _begins(kit.DATA, files, vocab_size):
        return
    place = kit.work_folder() / f"pack-{_stamp(files, vocab_size)}"
    place.mkdir(exist_ok=True)
    program, inputs = (sys.executable, "-P", "-m", "gpt1_ds"), ("--input", *map(str, text), "--unwrap")
    tokenizer, data = place / "tokenizer", place / "data"
    if not tokenizer.exists():
        _run(*program, "tokenizer", "train", *inputs, "--vocab-size", str(vocab_size), "--out", str(tokenizer))
    held_out = ("--validation", HELD_OUT)
    _run(*program, "data", "build", *inputs, "--tokenizer", str(tokenizer), *held_out, "--out", str(data))
    _archive(kit.DATA, {"": data})
    _ends(kit.DATA, files, vocab_size)


def pack_tasks(folder: Path) -> None:
    """Packs those of the tasks that `folder` holds; a line names the others."""
    places = {name: folder / name for name in TASKS if (folder / name).is_dir()}
    if not places:
        raise UserError(f"--tasks {folder}: holds none of {', '.join(TASKS)}")
    for name in TASKS:
        if name not in places:
            print(f"{folder / name}: no such folder; science.sh leaves it out", file=sys.stderr)
    files = _files([*places.values()])
    if _begins(kit.TASKS, files):
        _archive(kit.TASKS, places)
        _ends(kit.TASKS, files)


def _files(places: Collection[Path]) -> list[Path]:
    for place in places:
        if not place.exists():
            raise UserError(f"{place}: no such file or folder")
    inside = [one for place in places for one in ([place] if place.is_file() else place.rglob("*"))]
    return sorted({one for one in inside if one.is_file()})


def _stamp(files: Sequence[Path], *settings: object) -> str:
    facts = [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([facts, *settings]).encode()).hexdigest()[:16]


def _begins(archive: str, files: Sequence[Path], *settings: object) -> bool:
    """Returns whether the archive has to be made."""
    made = read_json(kit.KIT / STAMPS, {}).get(archive)
    return made != _stamp(files, *settings) or not (kit.KIT / archive).exists()


def _ends(archive: str, files: Sequence[Path], *settings: object) -> None:
    stamps = read_json(kit.KIT / STAMPS, {})
    write_json(kit.KIT / STAMPS, {**stamps, archive: _stamp(files, *settings)})


def _archive(name: str, places: dict[str, Path]) -> None:
    """Packs the files of each folder under its name in the archive."""
    part = kit.KIT / f"{name}.part"
    with tarfile.open(part, "w:xz", preset=2) as archive:
        for label, folder in places.items():
            for file in sorted(folder.rglob("*")):
                if file.is_file():
                    archive.add(file, str(Path(label) / file.relative_to(folder)), recursive=False)
    part.rename(kit.KIT / name)


def _run(*arguments: str, **variables: str) -> None:
    """Runs a program. Raises UserError with its last line where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(kit.ROOT), **variables}
    done = subprocess.run(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{' '.join(arguments[1:6])} ... ended with {done.returncode}: {last}")


def sizes(root: Path, packed: Path) -> dict[str, int]:
    """Returns the bytes of everything that travels: the checkout's files that git does not ignore, and each part of the
    kit.
    """
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.split(b"\0")
    files = [root / os.fsdecode(name) for name in set(names) if name]
    parts = {"the checkout": _bytes(file for file in files if not file.is_relative_to(packed))}
    for part in sorted(packed.iterdir()):
        parts[f"{packed.name}/{part.name}"] = _bytes([part] if part.is_file() else part.rglob("*"))
    return {**parts, "all that travels": sum(parts.values())}


def _bytes(files: Iterable[Path]) -> int:
    return sum(file.lstat().st_size for file in files if file.is_file() or file.is_symlink())


def check(found: dict[str, int]) -> None:
    """Raises UserError where too much would travel."""
    total = found["all that travels"]
    if total >= MOST_BYTES:
        most = MOST_BYTES >> 20
        raise UserError(
            f"{total / 2**20:.2f} MiB would travel, less than {most} MiB may: pack less text or fewer tasks"
        )


if __name__ == "__main__":
    sys.exit(main())
