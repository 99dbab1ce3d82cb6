import json
from pathlib import Path

import pytest

from gpt1_ds.common.errors import ConfigError
from gpt1_ds.plan import machine
from gpt1_ds.plan.machine import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_a_machine_file_reads_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "m.json"
    machine.write(PRESETS[name], path)
    assert machine.read(path) == PRESETS[name]
    assert machine.find_machine(str(path)) == PRESETS[name]
    assert not PRESETS[name].measured, "nobody measured what is shipped"


def test_which_machine_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(machine.VARIABLE, raising=False)
    assert machine.find_machine().name == "h100"
    machine.write(PRESETS["a100"], machine.default_path())
    assert machine.find_machine().name == "a100", "the one measured here"
    machine.write(PRESETS["h200"], tmp_path / "m.json")
    monkeypatch.setenv(machine.VARIABLE, str(tmp_path / "m.json"))
    assert machine.find_machine().name == "h200", "the one that the environment names"
    assert machine.find_machine("cpu").name == "cpu", "the one asked for"


def test_a_home_that_is_closed_holds_no_machine(anybody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `su` without `-`: plans and `train.micro_batch=auto` were refused."""
    monkeypatch.delenv(machine.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(anybody / "closed"))
    (anybody / "closed").mkdir(0)
    assert machine.find_machine(None, "cpu") == PRESETS["cpu"]


def test_a_file_that_is_no_machine_is_refused_in_one_line(tmp_path: Path) -> None:
    good = tmp_path / "good.json"
    machine.write(PRESETS["cpu"], good)
    raw = json.loads(good.read_text())

    def broken(**changes: object) -> str:
        path = tmp_path / "bad.json"
        path.write_text(json.dumps({**raw, **changes}))
        with pytest.raises(ConfigError) as error:
            machine.read(path)
        (line,) = error.value.problems
        return line

    slow = json.loads(json.dumps(raw["speeds"]))
    slow["fp32"][0]["stream"] = 0
    strange = json.loads(json.dumps(raw["speeds"]))
    strange["fp32"][0]["nonsense"] = 1
    assert "format 3" in broken(format=3)
    for line in (
        broken(speeds=slow),
        broken(speeds=strange),
        broken(speeds={}),
        broken(node={"latency": 1}),
        broken(memory_gib=-1),
        broken(peak_tflops=None),
    ):
        assert "not a machine file" in line
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="not a machine file"):
        machine.read(tmp_path / "bad.json")
    with pytest.raises(ConfigError, match="no such file; name one of h100"):
        machine.find_machine(str(tmp_path / "nowhere.json"))


def test_a_precision_without_speeds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.precision=fp16.*fp32, bf16"):
        PRESETS["cpu"].speeds_with("fp16", 1)


@pytest.mark.parametrize(
    ("flags", "units", "bf16_gains"),
    [
        ("avx2", "AVX2", 1.0),
        ("avx2 avx512f", "AVX512F", 1.0),
        ("avx2 avx512f avx512_bf16", "AVX512 BF16", 1.6),
        ("avx2 avx512f avx512_bf16 amx_bf16", "AMX BF16", 7.0),
        ("fpu", "AVX2", 1.0),
    ],
)
def test_this_cpu_is_assumed_by_its_flags(
    flags: str, units: str, bf16_gains: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text(f"processor : 0\nflags : {flags}\n")
    monkeypatch.setattr(machine, "CPU_FACTS", facts)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    found = machine.here()
    assert found.source == f"assumed of 6 cores with {units}"
    fp32, bf16 = (found.speeds_with(precision, 6).product(1e9) for precision in ("fp32", "bf16"))
    assert fp32 / bf16 >= bf16_gains
    assert [speeds.ranks for speeds in found.speeds["fp32"]] == [1, 2, 4, 6]
    assert found.speeds_with("fp32", 1).product(1e9) == pytest.approx(found.speeds_with("fp32", 6).product(1e9) / 6)
