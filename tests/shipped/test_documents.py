"""README, guides and the other pages: their commands, links and files are right."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from mkdocs.exceptions import Abort

from gpt1_ds.cli import parse
from gpt1_ds.commands.parser import parse_arguments
from gpt1_ds.commands.slurm import passed_on
from gpt1_ds.config import load, world_problems
from gpt1_ds.config.presets import find_file
from gpt1_ds.launcher.accelerator import with_fitted_micro_batch
from gpt1_ds.slurm.submit import TRAINING
from tests.helpers.documents import GUIDES, PAGES, ROOT, Line, blocks, lines
from tools import site


def test_there_are_commands() -> None:
    pages = {line.page for line in lines()}
    assert {"README.md", "launch/README.md", "launch/pretrain.sbatch"} <= pages
    assert len(pages & {str(path.relative_to(ROOT)) for path in GUIDES}) > 8
    assert len(lines()) > 80


@pytest.mark.parametrize("line", lines(), ids=str)
def test_commands_are_understood(line: Line) -> None:
    """They parse, their files and presets exist, and the configuration is legal for the ranks that they ask for."""
    if line.is_name:
        with pytest.raises(SystemExit, match="0"):
            parse([*line.arguments, "--help"])
        return
    options = parse(line.arguments)
    assert hasattr(options, "command")
    if options.passes_on:
        _, words = passed_on(options)
        keys = () if words[0] in TRAINING else ("slurm.", "run.")  # of the job
        options = parse_arguments(options.program, [word for word in words if not word.startswith(keys)])
    overrides = getattr(options, "overrides", [])
    assert all("=" in word for word in overrides)
    if getattr(options, "study", None) is not None:
        find_file(options.study)
    if hasattr(options, "config"):
        known = [{"my_cluster.yaml": "cluster/example"}.get(name, name) for name in options.config]
        shipped = [name for name in known if not name.endswith(".yaml")]  # others are the reader's own
        config = load(shipped, overrides)
        named = getattr(options, "nproc", None) or getattr(options, "world", None)
        world = line.world or (None if getattr(options, "search", False) else named)
        if "cluster/example" in shipped[:-1]:  # and something to train on it
            world = config.slurm.nodes * config.slurm.ranks
        if world is not None:
            assert not list(world_problems(with_fitted_micro_batch(config, world), world))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for name in re.findall(r"\]\(((?!http)[^)#]+)\)", page.read_text()):
        assert (page.parent / name).exists(), name


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_files_of_the_package_exist(page: Path) -> None:
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text()):
        assert (ROOT / "gpt1_ds" / name).exists() or (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tools_exist_and_have_their_options(page: Path) -> None:
    for name in re.findall(r"\b((?:tools|launch|tests)/[\w./-]*\w)", page.read_text()):
        assert (ROOT / name).exists(), name
    for command in [*blocks(page), *re.findall(r"`((?:bash|python) tools/[^`]+)`", page.read_text())]:
        called = re.match(r"(?:bash|python) (tools/\S+)(.*)", command)
        for option in re.findall(r" (--[\w-]+)", called[2] if called else ""):
            assert called is not None
            assert re.search(rf"{option}\b", (ROOT / called[1]).read_text()), f"{called[1]} has no {option}"


def test_the_site_has_every_page_and_what_they_link_to(tmp_path: Path) -> None:
    written = {page: page.read_text() for page in site.build(tmp_path, ["config"]) if page.name != "404.html"}
    assert sorted(site.PAGES) == sorted(PAGES)
    wanted = {tmp_path / page.relative_to(ROOT).with_suffix(".html") for page in PAGES}
    assert {page.with_name("index.html") if page.stem == "README" else page for page in wanted} <= written.keys()
    assert 'id="gpt1_ds.config.presets.find_file"' in (tmp_path / "api" / "config.html").read_text()
    for page, text in written.items():
        links = [
            link for link in re.findall(r'(?:href|src)="([^"]+)"', text) if not link.startswith(("http", "mailto"))
        ]
        assert len(links) > 10
        for name, _, anchor in (link.partition("#") for link in links):
            target = (page.parent / unquote(name)).resolve() if name not in ("", ".") else page
            assert target.exists(), f"{page}: {name}"
            if anchor and target in written:
                assert f'id="{anchor}"' in written[target], f"{page}: {name}#{anchor}"


def test_the_site_is_refused_where_a_link_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("# Home\n\n[away](gone.md)\n")
    monkeypatch.setattr(site, "PAGES", [tmp_path / "README.md"])
    monkeypatch.setattr(site, "NAMES", ())
    monkeypatch.setattr(site, "OTHERS", {})
    monkeypatch.setattr(site, "TOP", tmp_path)
    with pytest.raises(Abort):
        site.build(tmp_path / "out", ["config"])
