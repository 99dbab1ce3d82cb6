"""The same promises on one GPU over NCCL."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpt1_ds.checkpoint.whole import whole_model
from gpt1_ds.config import ModelConfig, load
from gpt1_ds.data.tokenizers.base import SpecialIds
from gpt1_ds.engine.graphs import CudaRecorder
from gpt1_ds.evaluation import decoding
from gpt1_ds.evaluation.graphed_steps import GraphedSteps, graphed_steps
from gpt1_ds.evaluation.sampling import Sampling
from gpt1_ds.model import proof
from gpt1_ds.model.lstm import LstmCell
from gpt1_ds.monitoring.stragglers import DeviceClock
from tests.helpers import finetuning
from tests.helpers.foreign import make_checkpoint
from tests.helpers.weights import relative
from tests.parallel.test_gradients import HEADS, batch, reference, run
from tools import runs
from tools.bench.ours import initial_weights
from tools.families import FAMILIES


@pytest.mark.parametrize("engine", ["dense-zero0", "dense-zero1", "recompute", "pipelined", "compiled"])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_gradients_equal_the_reference(engine: str, rate: float) -> None:
    rates = [f"model.{kind}_dropout={rate}" for kind in ("residual", "embedding", "attention")]
    loss, wanted = reference(rate, batch())
    results, found = run(engine, batch(), *rates)
    assert abs(results[0]["loss"] - loss) < 1e-5
    for name, want in wanted.items():
        assert relative(name, found[name], want, HEADS) < 1e-4, name


@pytest.mark.parametrize("graphs", [False, True])
def test_a_profile_has_the_devices_time(graphs: bool, tiny_data: Path, tmp_path: Path) -> None:
    """Kernels of a graph have no operator, but a call that launched them."""
    overrides = [f"data.path={tiny_data}", f"run.dir={tmp_path}"]
    overrides += ["train.steps=12", "train.profile=9:12"]  # graphs are made before
    if graphs:
        overrides += ["train.precision=bf16", "train.cuda_graphs=on"]
    assert runs.pretrain(overrides, 1) == 0
    summary = json.loads((runs.folder(overrides).profile / "summary.json").read_text())
    assert summary["device"] == torch.cuda.get_device_name()
    for name in ("forward", "optimizer") if graphs else ("forward", "backward", "optimizer"):  # a graph is one pass
        assert summary["phases"][name]["device_seconds"] > 0
    by_name = {one["name"]: one["device_seconds"] for one in summary["operators"]}
    assert (by_name.get("cudaGraphLaunch", 0) > 0) is graphs
    assert all(step["work"][2] > 0 for step in summary["ranks"][0]["steps"])
    assert summary["operators"][0]["device_seconds"] > 0
    assert max(held for _, held in summary["ranks"][0]["memory"]) < torch.cuda.get_device_properties(0).total_memory


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_fine_tuning_resumes_to_the_bit(precision: str, tiny_data: Path, tmp_path: Path) -> None:
    """Batches have one of two lengths. A process that resumes may meet the other one first."""
    model = ModelConfig(layers=2, width=32, heads=2, context=48)
    source = make_checkpoint(tmp_path / "source", tiny_data.parent / "tokenizer", model)
    task = tmp_path / "task"
    task.mkdir()
    rows = [f"{'a list ' * (1 if number % 3 else 6)},{'yes' if number % 2 else 'no'}" for number in range(48)]
    for split in ("train", "dev"):
        (task / f"{split}.csv").write_text("\n".join(["text,label", *rows]))
    overrides = [
        *("task.name=table", f"task.path={task}", "task.kind=classification", f"checkpoint.init_from={source}"),
        *("task.columns={text: text, label: label}", "train.epochs=4", "train.global_batch=2", "train.micro_batch=2"),
        *("train.deterministic=true", f"train.precision={precision}"),
    ]
    whole, stopped = ([*overrides, f"run.dir={tmp_path / name}"] for name in ("whole", "stopped"))
    assert finetuning.finetune(whole) == 0
    for step in (3, 8, 14):
        run = runs.Background(stopped, 1, finetuning.finetune)
        run.wait_for_step(step)
        run.run_dir.stop.touch()
        run.join()
    assert finetuning.finetune(stopped) == 0
    one, other = (finetuning.folder(overrides) for overrides in (whole, stopped))
    assert runs.losses(other) == runs.losses(one)
    assert runs.weights(other) == runs.weights(one)


def test_a_recording_that_was_asked_for_has_a_snapshot_of_memory(tiny_data: Path, tmp_path: Path) -> None:
    """For pytorch.org/memory_viz: this run's own file, which nothing here unpickles."""
    overrides = [f"data.path={tiny_data}", f"run.dir={tmp_path}", "train.steps=4000", "train.compile=off"]
    run = runs.Background(overrides, 1)
    run.wait_for(lambda: runs.last_step(run.run_dir) >= 1, 120)
    run.run_dir.profile_request.touch()
    run.wait_for(lambda: (run.run_dir.profile / "summary.json").exists())
    run.run_dir.stop.touch()
    run.join()
    snapshot = (run.run_dir.profile / "rank-0.memory.pickle").read_bytes()
    for text in (b"segments", b"device_traces", b"gpt1_ds/engine"):
        assert text in snapshot


def test_the_clock_of_stragglers_is_the_devices() -> None:
    clock = DeviceClock()
    torch.cuda.synchronize()
    begin = clock.mark()
    torch.cuda._sleep(100_000_000)  # cycles: some 50 ms
    end = clock.mark()
    assert clock.seconds(begin, end) == 0.0, "nobody waits for the device"
    torch.cuda.synchronize()
    assert 0.01 < clock.seconds(begin, end) < 1.0


def test_a_capture_that_fails_holds_no_memory() -> None:
    """A block that two streams have used is given back after it, though torch gives none back within a capture."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    recorder, other = CudaRecorder(device), torch.cuda.Stream(device)
    numbers = torch.ones(1000, device=device)
    with pytest.raises(Exception, match="captur"):
        recorder.capture(lambda: (torch.tensor(numbers.sum().item()),))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(device)
    for _ in range(20):
        block = torch.empty(1 << 20, device=device)
        block.record_stream(other)
        del block
        torch.cuda.synchronize()
    torch.empty(1 << 20, device=device)  # what asks for memory looks what has been given back
    assert torch.cuda.memory_allocated(device) - before < 2 << 22


def test_graphs_are_made_again_when_all_others_are_gone() -> None:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    recorder, numbers = CudaRecorder(device), torch.arange(4.0, device=device)
    reserved = []
    for factor in range(1, 4):
        replay, (doubled,) = recorder.capture(lambda factor=factor: (numbers * factor,))
        replay()
        assert doubled.tolist() == [0.0, factor, 2.0 * factor, 3.0 * factor]
        del replay, doubled
        reserved.append(torch.cuda.memory_reserved(device))
    assert reserved[0] == reserved[-1], "each takes the memory of the one before it"


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    ("overrides", "tokens"),
    [
        (["model.norm=pre"], 360),
        (["model.norm=pre", "model.positions=relative", "model.mask=prefix", "objective.kind=prefix"], 360),
        (FAMILIES["t5"], 300),
    ],
    ids=["learned", "relative", "encoder-decoder"],
)
def test_text_in_graphs_is_that_of_ordinary_steps(
    overrides: list[str], tokens: int, beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows of several lengths, over more columns than a graph reads, and beyond the context."""
    sizes = ["model.layers=2", "model.width=64", "model.heads=2", "model.context=320", "model.vocab_size=500"]
    config = load([], [*overrides, *sizes])
    weights = initial_weights(config)
    model = whole_model(config, lambda info: weights[info.name] * 4).cuda()
    ids: Any = SimpleNamespace(vocab_size=500, eod_id=499, pad_id=499, special_ids=SpecialIds(eod=499))
    made: list[GraphedSteps] = []

    def kept(*arguments: Any) -> GraphedSteps | None:
        steps = graphed_steps(*arguments)
        made.extend([steps] if steps else [])
        return steps

    def texts() -> list[list[int]]:
        way = Sampling(tokens, temperature=0, min_tokens=tokens, beams=beams)
        return decoding.write(model, ids, [[*range(first, 3 * first)] for first in (1, 7, 20)], way)

    proof.decide(True)
    monkeypatch.setattr(decoding, "graphed_steps", kept)
    found = texts()
    assert [steps.problem for steps in made if steps.problem] == []
    assert any(steps.graph for steps in made)
    monkeypatch.setattr(decoding, "graphed_steps", lambda *_: None)
    assert texts() == found
    assert len({token for text in found for token in text}) > 20, "they do not repeat one word"


def test_an_lstm_is_the_cpus_and_has_gradients_in_evaluation() -> None:
    torch.manual_seed(0)
    cell = LstmCell(32, 64).eval()
    there, x_SBD = copy.deepcopy(cell).cuda(), torch.randn(48, 4, 32)
    for one, given in ((cell, x_SBD), (there, x_SBD.cuda())):
        one(given)[0].square().sum().backward()
    torch.testing.assert_close(there(x_SBD.cuda())[0].cpu(), cell(x_SBD)[0], atol=1e-6, rtol=1e-5)
    for name, weight in cell.named_parameters():
        found, wanted = there.get_parameter(name).grad.cpu(), weight.grad
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max(), name
