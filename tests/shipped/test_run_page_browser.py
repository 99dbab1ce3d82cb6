"""The page of two runs in a real browser: what the mouse, the keys and the controls do, and nothing on its console."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from gpt1_ds.report.page import write_report
from gpt1_ds.report.profile_page import write_profile
from tests.shipped.test_scaling_page_browser import browser, visit  # noqa: F401
from tests.unit.report.test_page import run  # noqa: F401
from tests.unit.report.test_profile_page import summary, write
from tests.unit.tracking.test_record import train_record

# What a person does, and what is then on the page, as JSON in an element that the dump shows.
ACTIONS = """
const seen = {}, one = (what) => document.querySelector(what);
const loss = one('#chart-loss'), plot = loss.querySelector('.plot'), form = one('#controls');
const frame = () => plot.getBoundingClientRect();
const at = (part) => frame().left + 50 + (frame().width - 50 - charts[0].width + charts[0].box.right) * part;
const point = (kind, part, y = 60) =>
  plot.dispatchEvent(new PointerEvent(kind, { clientX: at(part), clientY: frame().top + y, bubbles: true }));
const choose = (name, value) => {
  const input = form.elements[name];
  if (value === true) input.checked = true; else input.value = value;
  form.dispatchEvent(new Event('input', { bubbles: true }));
};
const title = () => loss.querySelector('.axes .title').textContent;
const curve = () => loss.querySelector('g.line path:not(.raw, .absent)').getAttribute('d');
const tip = () => loss.querySelector('.tip').hidden ? null : loss.querySelector('.tip').innerText;
seen.width = frame().width / innerWidth;
seen.outputs = [...loss.querySelectorAll('.legend output')].map((output) => output.textContent);
point('pointermove', 0.512);
seen.tip = tip();
point('pointermove', 0, charts[0].box.bottom + 6);
seen.event = tip();
point('pointerleave', 0);
seen.left = tip();
seen.titles = [title()];
for (const axis of ['hours', 'step']) { choose('axis', axis); seen.titles.push(title()); }
const linear = curve();
choose('logX', true);
seen.log = curve() !== linear;
choose('smoothing', '80');
seen.smooth = [one('#reach').textContent, loss.querySelectorAll('path.raw').length, curve() !== linear];
seen.rate = one('#chart-learning_rate').querySelectorAll('path.raw').length;
const heights = () => [...loss.querySelectorAll('.axes text')].map((text) => text.getAttribute('y'));
seen.linear = heights();
loss.querySelector('.log-y').click();
seen.heights = heights();
loss.querySelector('.legend button').click();
seen.curves = loss.querySelectorAll('g.line').length;
point('pointerdown', 0.2); point('pointermove', 0.6);
window.dispatchEvent(new PointerEvent('pointerup', { clientX: at(0.6), clientY: 60 }));
seen.zoomed = !one('#whole').hidden;
plot.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }));
seen.whole = one('#whole').hidden;
plot.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft' }));
seen.key = tip();
seen.dark = getComputedStyle(document.body).backgroundColor;
one('#theme').click();
seen.light = getComputedStyle(document.body).backgroundColor;
const box = (element) => element.getBoundingClientRect();
const labels = [...loss.querySelectorAll('.marks text')].map(box);
seen.labels = labels.map((label) => [label.left - frame().left - charts[0].box.right, label.top, label.bottom]);
seen.settings = document.querySelectorAll('#settings tbody tr:not([hidden])').length;
one('#filter input').value = 'optimizer.lr';
one('#filter').dispatchEvent(new Event('input'));
seen.found = [...document.querySelectorAll('#settings tbody tr:not([hidden]) th')].map((cell) => cell.textContent);
const text = document.createElement('pre');
text.id = 'seen';
text.textContent = encodeURIComponent(JSON.stringify(seen));
document.body.append(text);
"""


@pytest.fixture
def page(run: Path, tmp_path: Path) -> Path:  # noqa: F811
    grams = [{"order": order, "loss": 6.5 - order / 100, "bits_per_byte": 2.5} for order in (1, 2, 3)]
    (tmp_path / "data" / "ngrams.json").write_text(json.dumps(grams))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:-1]]
    lines += [asdict(train_record(step, loss=6.2, grad_norm=1.0)) for step in range(9, 201)]
    lines += [asdict(train_record(201, loss=None, grad_norm=None))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "events.jsonl").write_text('{"time": "noon", "event": "spike", "step": 0, "problem": "<b>loss"}\n')
    page = write_report([run, run], tmp_path / "out")
    page.write_text(page.read_text().replace("</body>", f"<script>{ACTIONS}</script></body>"))
    return page


def test_values_axes_zoom_and_themes(browser: str, page: Path) -> None:  # noqa: F811
    document, console = visit(
        browser, page, "--dump-dom", "--window-size=1280,900", "--blink-settings=preferredColorScheme=0"
    )
    assert console == []
    found = re.search(r'<pre id="seen">([^<]*)</pre>', document)
    assert found is not None, "the actions came to their end"
    seen = json.loads(unquote(found[1]))
    assert seen["width"] > 0.9, "as wide as the page"
    assert seen["outputs"] == ["not finite", "6.100"] * 2
    lines = seen["tip"].split("\n")
    assert lines[0] == "step 103 · 1.03K tokens · 1.72 min"
    assert [line for line in lines if line == "6.200"] == ["6.200"] * 2, "both runs at the step under the mouse"
    assert "odd: held out (step 8)" not in seen["tip"], "no value where a curve has none"
    assert seen["event"].split("\n")[0] == "odd: spike"
    assert "problem <b>loss" in seen["event"], "text is text"
    assert seen["left"] is None
    assert seen["titles"] == ["training tokens", "minutes of training", "steps"]
    assert seen["log"]
    assert seen["smooth"] == ["26 steps", 2, True]
    assert seen["rate"] == 0, "a schedule is not noise"
    assert seen["heights"] != seen["linear"], "log y"
    assert seen["curves"] == 1, "one of two is hidden"
    assert seen["zoomed"]
    assert seen["whole"]
    assert seen["key"].startswith("step 8 · ")
    assert {seen["dark"], seen["light"]} == {"rgb(20, 22, 26)", "rgb(251, 251, 250)"}
    assert len(seen["labels"]) == 3
    assert all(right_of_plot > 5 for right_of_plot, _, _ in seen["labels"]), "no curve is there"
    rows = sorted(label[1:] for label in seen["labels"])
    assert all(upper[1] <= lower[0] + 1 for upper, lower in itertools.pairwise(rows)), "nor another label"
    assert seen["settings"] == 0, "the same run twice differs in nothing"
    assert seen["found"] == ["optimizer.lr"]


def seen_by(browser: str, page: Path, expression: str, *flags: str) -> Any:  # noqa: F811
    """The value of a JavaScript expression when the page has loaded, with nothing on its console."""
    tell = (
        f"document.body.append(Object.assign(document.createElement('pre'), {{id: 'seen', textContent: {expression}}}))"
    )
    page.write_text(page.read_text().replace("</body>", f"<script>{tell}</script></body>"))
    document, console = visit(browser, page, "--dump-dom", *flags)
    assert console == []
    found = re.search(r'<pre id="seen">([^<]*)</pre>', document)
    assert found is not None, "the page came to its end"
    return json.loads(found[1])


def test_a_stretch_of_equal_values_has_axes(browser: str, run: Path, tmp_path: Path) -> None:  # noqa: F811
    """Their moving average stops just below them: of such heights a tick and one step more are the same number."""
    lines = [asdict(train_record(step, loss=6.0, clipped=float(step > 100))) for step in range(1, 1502)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_report([run], tmp_path / "out")
    texts = "[...document.querySelectorAll('#chart-clipped .axes text')].map((text) => text.textContent)"
    seen = seen_by(browser, page, f"(zoomed([10000, 15000]), JSON.stringify({texts}))", "--window-size=1280,900")
    assert "1" in seen
    assert len(seen) < 40


def test_ticks_of_nearly_equal_numbers_come_to_an_end(browser: str, run: Path, tmp_path: Path) -> None:  # noqa: F811
    page = write_report([run], tmp_path / "out")
    assert seen_by(browser, page, "JSON.stringify(ticks(1 - 2 ** -53, 1 + 2 ** -52, 5, false).length)") < 20


def test_scores_are_in_sight_on_a_small_screen(browser: str, run: Path, tmp_path: Path) -> None:  # noqa: F811
    page = write_report([run], tmp_path / "out")
    cell = "document.querySelector('#evaluations + .wide td:last-child')"
    expression = f"JSON.stringify([{cell}.getBoundingClientRect().right, innerWidth])"
    right, width = seen_by(browser, page, expression, "--window-size=400,900")
    assert right <= width <= 500, "some browsers have no smaller window"


def test_words_of_a_profile_are_as_light_as_its_numbers_on_a_dark_page(browser: str, tmp_path: Path) -> None:  # noqa: F811
    write(tmp_path, summary(2))
    colour = "(one) => getComputedStyle(document.querySelector(one)).color"
    colours = f"JSON.stringify(['.numbers td.word', '.numbers td:not(.word)'].map({colour}))"
    argument, number = seen_by(browser, write_profile(tmp_path), colours, "--blink-settings=preferredColorScheme=0")
    assert argument == number


def test_of_nine_runs_no_two_have_the_same_curve(browser: str, run: Path, tmp_path: Path) -> None:  # noqa: F811
    page = write_report([run] * 9, tmp_path / "out")
    look = "(one) => {const {stroke, strokeDasharray} = getComputedStyle(one); return stroke + strokeDasharray}"
    curves = "[...document.querySelectorAll('#chart-loss g.line path:not(.raw, .absent)')]"
    drawn = seen_by(browser, page, f"JSON.stringify({curves}.map({look}))", "--window-size=1280,900")
    assert len(drawn) == len(set(drawn)) == 9
