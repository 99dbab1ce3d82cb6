"""Rules of the code base, held by reading the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gpt1_ds"
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = (  # of the package: each imports those before it only, without exception
    *("common", "config", "architecture", "plan", "data", "tracking", "objectives", "tasks", "model", "launcher"),
    *("engine", "checkpoint", "interop", "monitoring", "evaluation", "training", "diagnostics", "slurm", "scaling"),
    *("sweep", "report", "commands", "cli", "__main__"),
)
TRITON = ("attention_triton.py", "cross_entropy_triton.py", "gelu_triton.py", "residual_norm_triton.py")
# who may import the library at all
WALLS = {
    "megatron": (
        "model/layers.py",
        "model/embeddings.py",
        "engine/deepspeed/settings.py",
        "launcher/libraries.py",
    ),
    "deepspeed": ("engine/", "launcher/libraries.py", "commands/doctor.py"),
    "triton": tuple(f"model/kernels/{name}" for name in ("__init__.py", *TRITON)),
    "wandb": ("tracking/wandb.py",),
    "tensorboard": ("tracking/tensorboard.py",),
    "trackio": ("tracking/trackio.py",),
    "sklearn": ("tasks/metrics.py", "tasks/controls.py"),
    "datasets": ("tasks/hub_tables.py", "data/hub_datasets.py"),
    "torch": (
        *("model/", "engine/", "launcher/", "checkpoint/", "interop/", "monitoring/", "evaluation/"),
        *("training/", "diagnostics/", "tasks/"),
        "commands/doctor.py",
    ),
}
FOR_EVERY_FAMILY = ("model", "engine", "training", "objectives", "plan")
FAMILY = re.compile(r"bert|gpt-?2(?!\d)|(?<![a-z\d])t5(?![a-z\d])", re.IGNORECASE)
TASKS = ("classification", "similarity", "regression", "choice", "sentences")
SAME_NAMES = {  # of different things
    "Block": "of a model; of sentences, of scores: inside of their modules",
    "Sentences": "a dataset's, the objective over them and the kind of task: named after one another",
    "Spans": "a dataset's, and the objective over them",
    "linear": "a layer's parameters, and its product, called as torch calls it",
    "load": "gpt1_ds.load is public; configurations are loaded by config.load",
}
LIBRARIES_OF_DATA = ("sentencepiece", "spacy", "ftfy", "tokenizers")


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file, the module first: read once for all rules."""
    return list(ast.walk(ast.parse(path.read_text())))


def tree_of(path: Path) -> ast.Module:
    tree = nodes_of(path)[0]
    assert isinstance(tree, ast.Module)
    return tree


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield node.lineno, node.module or ""
            yield from (
                (node.lineno, f"{node.module}.{alias.name}")
                for alias in node.names
                if (node.module or "").startswith("gpt1_ds")
            )


def may_import(here: str, there: str) -> bool:
    return here in (there, "__init__") or there == "__init__" or LAYERS.index(there) < LAYERS.index(here)


def test_the_top_level_has_no_code() -> None:
    """Its owner wants it so. Users put texts, datasets and configurations beside it."""
    code = {".py", ".sh", ".toml", ".cfg", ".ini", ".in"}
    assert {path.name for path in ROOT.iterdir() if path.suffix in code and path.is_file()} == {"pyproject.toml"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] == "gpt1_ds" and len(parts) > 1 and not (len(parts) == 2 and parts[1] == "__version__"):
            assert may_import(package_of(path), parts[1]), (
                f"{path}:{line}: {package_of(path)} must not import {parts[1]}"
            )


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a circle; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    """Also not by way of others, in functions, or for types alone."""
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}), "one is found"
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = {name for _, name in imports(path)} & modules.keys() - {module, "gpt1_ds"}
        packages = {name.rpartition(".")[0] for name in names}  # of `from package import module`
        graph[module] = names - packages
    assert circle(graph) == []


def family_names(tree: ast.Module) -> list[str]:
    """Names and strings of the code that name a family of models; comments and docstrings may cite its paper."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return [line for line in ast.unparse(tree).splitlines() if FAMILY.search(line)]


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("is_bert = kind == 1", True),
        ("if family == 'GPT-2': pass", True),
        ("def t5_bias(): pass", True),
        ("def f():\n    'BERT (Devlin et al. 2019)'\n    return 'gpt1', 'gpt-2018', at5  # T5 has none", False),
    ],
)
def test_family_names_are_found(code: str, named: bool) -> None:
    assert bool(family_names(ast.parse(code))) == named


@pytest.mark.parametrize("package", FOR_EVERY_FAMILY)
def test_no_family_has_code_of_its_own(package: str) -> None:
    """Architectures, presets and interop/families/ say what a family is; what runs it reads settings."""
    for path in (PACKAGE / package).rglob("*.py"):
        assert not FAMILY.search(path.stem), path
        assert family_names(ast.parse(path.read_text())) == [], path


def kinds_asked(tree: ast.Module) -> list[str]:
    """Comparisons of something called kind with the name of a kind of task."""
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    return [
        ast.unparse(node)
        for node in compared
        if ast.unparse(node.left).endswith("kind")
        and any(isinstance(x, ast.Constant) and x.value in TASKS for side in node.comparators for x in ast.walk(side))
    ]


def test_a_kind_of_task_is_asked_for_once() -> None:
    """What depends on it is a method of its class: a new kind is a new file."""
    assert kinds_asked(ast.parse("x = spec.kind == 'choice' or kind in ('regression', 'other')")) != []
    for path in FILES:
        if path.relative_to(PACKAGE).parts[:2] != ("tasks", "kinds") and path != PACKAGE / "config" / "task.py":
            assert kinds_asked(tree_of(path)) == [], path


def replaced_in_vain(tree: ast.Module) -> list[str]:
    """Names that this code assigns to modules of the package that have no such name: nothing there reads them."""
    modules = {
        alias.asname or alias.name: ROOT.joinpath(*(node.module or "").split("."), f"{alias.name}.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpt1_ds")
        for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                path = modules.get(target.value.id)
                if path is not None and path.is_file() and not re.search(rf"\b{target.attr}\b", path.read_text()):
                    found.append(ast.unparse(target))
    return found


def test_what_tests_replace_is_there() -> None:
    """pytest's monkeypatch looks; an assignment, as ranks of tests make them, does not."""
    code = "from gpt1_ds.engine import base, gradient_norm\n"
    code += "base.decides_on_device = gradient_norm.decides_on_device = None"
    assert replaced_in_vain(ast.parse(code)) == ["base.decides_on_device"]
    for path in (ROOT / "tests").rglob("*.py"):
        assert replaced_in_vain(ast.parse(path.read_text())) == [], path


def test_tools_do_not_import_tests() -> None:
    """What both need lies in tools/."""
    for path in (ROOT / "tools").rglob("*.py"):
        assert not [name for _, name in imports(path) if name.split(".")[0] == "tests"], path


def names_of_several(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Public classes that several of these modules (name -> tree) define, and public functions that others import by
    their name alone from several of them: name -> modules. `module.function` says itself which one is meant.
    """
    nodes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {(node.module, alias.name) for node in nodes for alias in node.names}
    found: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in tree.body:
            is_class, is_function = isinstance(node, ast.ClassDef), isinstance(node, ast.FunctionDef)
            if is_class or (is_function and (module, node.name) in imported):
                found.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1 and not name.startswith("_")}


def test_a_name_means_one_thing() -> None:
    code = ast.parse("class A: pass\ndef b(): pass\ndef c(): pass")
    importing = ast.parse("from x import b, c\nfrom y import b")
    assert names_of_several({"x": code, "y": code, "z": importing}).keys() == {"A", "b"}
    trees = {".".join(path.relative_to(ROOT).with_suffix("").parts): tree_of(path) for path in FILES}
    assert names_of_several(trees).keys() == SAME_NAMES.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_libraries_are_imported_in_their_places(path: Path) -> None:
    place = path.relative_to(PACKAGE).as_posix()
    for line, name in imports(path):
        library = name.split(".")[0]
        if library in WALLS:
            assert place.startswith(WALLS[library]), f"{place}:{line}: {library} is imported outside its packages"
        if library in LIBRARIES_OF_DATA:
            assert place.startswith("data/"), f"{place}:{line}: {library} is imported outside data/"


@pytest.mark.parametrize(
    "path", [*FILES, *sorted((ROOT / "tools").rglob("*.py"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 500, f"{path} has {text.count(chr(10))} lines"
    assert path.name != "utils.py"
    for node in nodes_of(path):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= 60, f"{path}:{node.lineno}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_unpickled_and_no_shell_is_used(path: Path) -> None:
    assert not [name for _, name in imports(path) if name.split(".")[0] in ("pickle", "dill", "cloudpickle", "joblib")]
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            called = ast.unparse(node.func) if name in ("eval", "exec", "system", "popen", "load") else ""
            assert called not in ("eval", "exec", "os.system", "os.popen", "torch.load"), (
                f"{path}:{node.lineno}: {called}"
            )
            for keyword in node.keywords:
                if keyword.arg in ("shell", "allow_pickle"):
                    assert ast.unparse(keyword.value) == "False", f"{path}:{node.lineno}: {keyword.arg}"


def read_in_the_locale(nodes: list[ast.AST]) -> list[str]:
    """Calls that open a text file without naming its encoding; descriptors of the terminal are the person's own."""
    found = []
    for node in nodes:
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if re.search(r"(^|\.)(read_text|write_text)$|^open$|^os\.fdopen$|\.open$", called) and called != "os.open":
            text = ast.unparse(node)
            if not re.search(r"""encoding=|['"][rwax]\+?b\+?['"]|^open\(\d|os\.dup\(|^gzip\.open""", text):
                found.append(text)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_are_utf8_whatever_the_locale(path: Path) -> None:
    """`import gpt1_ds` in a person's Python is not started again in UTF-8 mode, as the program is."""
    assert read_in_the_locale(nodes_of(path)) == []


def test_what_is_read_in_the_locale_is_found() -> None:
    code = "a.b().read_text()\nopen(x, 'a')\nopen(x, 'ab')\na.write_text(x, encoding='utf-8')\nopen(1, 'w')"
    assert sorted(read_in_the_locale(list(ast.walk(ast.parse(code))))) == ["a.b().read_text()", "open(x, 'a')"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_public_names_have_docstrings_where_files_say_what_they_are(path: Path) -> None:
    if path.name != "__main__.py":
        assert ast.get_docstring(tree_of(path)), f"{path}: no docstring says what this file is"


@pytest.mark.parametrize("root", ["gpt1_ds", "tools"])
def test_docstrings_have_a_subject(root: str) -> None:
    """Not: "Of the rank that held most", "Those of the table", "None of no values"."""
    for path in (ROOT / root).rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                begins = text.startswith(("Of ", "Those ", "None ", "Nobody "))
                assert not begins, f"{path}: {getattr(node, 'name', 'module')}: write what it is: {text:.60}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["pretrain", "--help"],
        ["pretrain", "--print-config"],
        ["pretrain", "--dry-run", "-c", "pretrain/gpt1_117m"],
        ["plan", "-c", "pretrain/gpt1_117m", "--world", "8"],
        ["plan", "-c", "pretrain/gpt1_117m", "--world", "1024", "--search", "--json"],
        ["pretrain", "model.nonsense=1"],
        ["finetune", "study", "--help"],
        ["finetune", "study", "finetune/study/books", "--dry-run"],
    ],
    ids=" ".join,
)
def test_no_heavy_library_is_loaded(arguments: list[str]) -> None:
    code = f"from gpt1_ds.cli import main\ntry: main({arguments!r})\nexcept SystemExit: pass"
    assert_none_is_loaded(code, "torch", "deepspeed", "megatron", "wandb", "transformers", "matplotlib")


def test_the_help_of_every_command_loads_no_library() -> None:
    assert_none_is_loaded("from gpt1_ds import cli; cli.parser()", "torch", "numpy", "omegaconf", "yaml", "rich")


def test_reading_a_task_loads_no_heavy_library() -> None:
    code = "from gpt1_ds.tasks import batches, encoding, metrics, reading, registry, zeroshot"
    assert_none_is_loaded(code, "torch", "sklearn", "scipy", "datasets", "transformers")


def assert_none_is_loaded(code: str, *libraries: str) -> None:
    """By `code`, in a process of its own."""
    code += f"\nimport sys\nfound = sys.modules.keys() & {set(libraries)!r}\nassert not found, found"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def test_kernels_that_are_looked_up_by_name_are_there() -> None:
    """Nothing imports them: on a machine without Triton a wrong name would not be noticed."""
    folder = PACKAGE / "model" / "kernels"
    names = {name for path in folder.glob("*.py") for name in re.findall(r'"(\w+_triton\w*)"', path.read_text())}
    assert names >= {name.removesuffix(".py") for name in TRITON}, "each is looked up"
    assert not [name for name in names if not (folder / f"{name}.py").is_file()]
