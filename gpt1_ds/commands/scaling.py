"""`scaling`: how loss falls with depth and data; a law from points, and what it says about untrained runs."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from gpt1_ds.commands import parser as shared
from gpt1_ds.commands.parser import Command, Group
from gpt1_ds.common.errors import EXIT_CONTINUE, ConfigError, DataError, UserError
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import share_as
from gpt1_ds.common.text import amount, count, parse_count

if TYPE_CHECKING:
    from gpt1_ds.sweep.scaling_sweep import ScalingSweep

SHOWN = ("alpha", "beta", "E", "R_D", "R_N", "a", "b")  # A and B are nearly unidentified: in fit.json alone
LEFT = {"a": "N_opt ~ C^a", "b": "D_opt ~ C^b", "E": "nats per token"}


def _fit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", nargs="?", metavar="STUDY", help="a study, or a folder that holds its results.csv")
    points = "points from elsewhere: columns n,d,loss[,u][,held_out] (default: those of STUDY)"
    parser.add_argument("--from-csv", metavar="FILE", help=points)
    out = "where fit.json and predictions.csv go (default: the study's folder)"
    parser.add_argument("--out", metavar="DIR", help=out)
    forms = "chinchilla (default): E + A/N^alpha + B/D^beta; gadre: alpha = beta; repeated: tokens seen again; "
    forms += "power_n, power_d: one axis"
    parser.add_argument("--form", default="chinchilla", metavar="FORM", help=forms)
    losses = "huber of log loss, or l2 (default: huber; gadre: l2)"
    parser.add_argument("--loss", metavar="LOSS", help=losses)
    given = "with --form repeated: A=..,B=..,E=..,alpha=..,beta=.. are taken as given; with R_D=..,R_N=.. also, nothing"
    given += " is fitted and the objective there is printed (default: all is fitted)"
    parser.add_argument("--at", metavar="k=v,...", help=given)
    draws = "how often the bootstrap draws; 0: no intervals (default: %(default)s)"
    parser.add_argument("--draws", type=int, default=1000, metavar="N", help=draws)
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the seed of the bootstrap (default: %(default)s)"
    )


def _fit(options: argparse.Namespace) -> int:
    """Fit, write fit.json and predictions.csv, and tell the parameters, the errors and every warning."""
    from gpt1_ds.scaling.fitting import fit_file, write_fit
    from gpt1_ds.sweep.scaling_trials import study_folder

    if (options.study is None) == (options.from_csv is None):
        raise ConfigError("scaling fit: name either a study or --from-csv FILE")
    if options.from_csv is not None and options.out is None:
        raise ConfigError("--from-csv: say with --out DIR where fit.json goes")
    if options.seed < 0:
        raise ConfigError(f"--seed={options.seed}: must be 0 or more")
    file = Path(options.from_csv) if options.from_csv else study_folder(options.study) / "results.csv"
    if not options.from_csv and not file.exists():
        raise DataError(f"{file}: is not here; make it with gpt1-ds scaling run, or with scaling collect")
    out = Path(options.out) if options.out else file.parent
    record, rows = fit_file(file, options.form, options.loss, options.draws, _given(options.at), options.seed)
    share_as(out)
    write_fit(out, record, rows)
    if options.study is not None:
        _publish(file.parent, record, rows, None if out == file.parent else [])
    print("\n".join(describe_fit(record)))
    print(f"{out / 'fit.json'}, {out / 'predictions.csv'}")
    return 0


def _publish(
    folder: Path, record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], figures: Sequence[Path] | None
) -> None:
    """Show a fit in the W&B run of the study in `folder`, where its cells are tracked, with `figures`; None: with those
    of the study's report, which is written for them.
    """
    from gpt1_ds.sweep.scaling_wandb import publish_fit, tracking_of

    tracking = tracking_of(folder)
    if tracking is not None:
        publish_fit(folder, tracking, record, rows, _report_figures(folder) if figures is None else figures)


def _report_figures(folder: Path) -> list[Path]:
    """Write the report of the study in `folder`; return its figures as PNG files, none where no library draws them."""
    from gpt1_ds.report.scaling_page import write_scaling_report

    try:
        page = write_scaling_report(folder)
    except UserError as error:
        say(f"{folder}: without report.html and its figures: {error}")
        return []
    return sorted((page.parent / "figures").glob("*.png"))


def _predict_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", nargs="?", metavar="STUDY", help="a study, or a folder that holds its fit.json")
    parser.add_argument("--fit", metavar="FILE", help="a fit.json (default: that of STUDY)")
    params = "parameters, in the fit's convention, like 117M (default: open)"
    parser.add_argument("--params", metavar="N", help=params)
    parser.add_argument("--tokens", metavar="D", help="tokens trained on, like 2B (default: open)")
    unique = "how many of --tokens are unique: shows what another epoch is worth (default: all)"
    parser.add_argument("--unique", metavar="U", help=unique)
    flops = "compute, 6ND: the best N and D for it, or the D or N left open (default: 6ND of both)"
    parser.add_argument("--flops", metavar="C", help=flops)
    target = "with --params: tokens to reach L nats per token (default: not asked)"
    parser.add_argument("--target-loss", type=float, metavar="L", help=target)
    parser.add_argument("--json", action="store_true", help="print one JSON object in the place of text")


def _predict(options: argparse.Namespace) -> int:
    """Answer what the options ask of a fit."""
    from gpt1_ds.scaling.predict import Query, predict_with, read_fit
    from gpt1_ds.sweep.scaling_trials import study_folder

    if (options.study is None) == (options.fit is None):
        raise ConfigError("scaling predict: name either a study or --fit FILE")
    file = Path(options.fit) if options.fit else study_folder(options.study) / "fit.json"
    question = Query(
        n=_number("--params", options.params),
        d=_number("--tokens", options.tokens),
        u=_number("--unique", options.unique),
        flops=_number("--flops", options.flops),
        target=options.target_loss,
    )
    answer = predict_with(read_fit(file), question)
    print(json.dumps(answer, indent=2) if options.json else "\n".join(describe_answer(answer)))
    return 0


def describe_fit(record: Mapping[str, Any]) -> Iterator[str]:
    """Lines for a person: parameters with intervals, errors beside the noise floor, warnings."""
    left = "".join(f"; left out: {number} {reason}" for reason, number in record["left_out"].items())
    yield f"{record['form']} ({record['loss']}) on {record['points']} points{left}"
    for name in SHOWN:
        if name in record:
            note = f"   {LEFT[name]}" if name in LEFT else ""
            yield f"  {name:6} {record[name]:9.4f}{_interval(record['intervals'].get(name), '9.4f')}{note}"
    starts = record["starts"]
    agree = f", {starts['agreeing']} of {starts['count']} starts agree" if starts["count"] else ""
    yield f"  objective {record['objective']:.7g}{agree}"
    noise = record["noise"]
    floor = "no noise floor (no two seeds of one cell)"
    if noise:
        floor = f"noise floor {100 * noise['relative_std']:.2f} % ({noise['runs']} runs of {noise['groups']} cells)"
    yield f"  error of the fit {record['fit_error_percent']:.2f} %; {floor}"
    for row in record["held_out"]:
        found = f"{row['predicted']:.4f}{_interval(row['interval'], '.4f')}"
        yield f"  held out {row['cell']}: {row['error_percent']:+.4f} %: predicted {found}, measured {row['loss']:.4f}"
    yield from (f"warning: {line}" for line in record["warnings"])


def describe_answer(answer: Mapping[str, Any]) -> Iterator[str]:
    """Lines for a person."""
    if "optimal" in answer:
        best = answer["optimal"]
        yield f"compute-optimal for C = {best['flops']:.4g} FLOPs (C = 6ND), fresh tokens:"
        yield f"  N {_count(best['n'])}"
        yield f"  D {_count(best['d'])}"
    if "tokens_for_target" in answer:
        target = answer["tokens_for_target"]
        tokens = "no number of them" if target["value"] is None else _count(target)
        yield f"fresh tokens for N = {count(target['n'] or 0)} to reach {target['target']:.4g}: {tokens}"
    if "loss" in answer:
        where = f"N = {count(answer['n'])}, D = {count(answer['d'])}"
        if answer["u"] < answer["d"]:
            where += f", U = {count(answer['u'])} ({answer['d'] / answer['u']:.3g} epochs)"
        interval = _interval(answer["loss"]["interval"], ".4f")
        yield f"loss at {where}: {answer['loss']['value']:.4f}{interval} nats per token"
        factors = answer["extrapolation"]
        n, d, flops = (f"{factors[name]:.3g}x" for name in ("n", "d", "flops"))
        yield f"extrapolation: N {n}, D {d}, C {flops} of what was fitted (1x: inside it)"
    if "epoch" in answer:
        yield from _describe_epoch(answer["epoch"])
    yield from (f"warning: {line}" for line in answer["warnings"])


def _describe_epoch(epoch: Mapping[str, Any]) -> Iterator[str]:
    new = epoch["gain_if_new"]
    fresh = f"{new['value']:.4f}{_interval(new['interval'], '.4f')}"
    if epoch["gain"] is None:
        yield f"another epoch ({count(epoch['more_tokens'])} tokens): at most {fresh} nats, if repeated were new"
        return
    gain = f"{epoch['gain']['value']:.4f}{_interval(epoch['gain']['interval'], '.4f')}"
    verdict = ""
    if "worth_it" in epoch:
        side = "above" if epoch["worth_it"] else "within"
        verdict = f"; {side} twice the noise of one run ({epoch['noise_nats']:.4f})"
    yield f"another epoch ({count(epoch['more_tokens'])} tokens): loss falls by {gain}, new tokens {fresh}{verdict}"


def _interval(bounds: list[float] | None, style: str) -> str:
    return f" [{bounds[0]:{style}}, {bounds[1]:{style}}]" if bounds else ""


def _count(figure: Mapping[str, Any]) -> str:
    bounds = figure["interval"]
    ends = "" if not bounds else f" [{', '.join('none' if end is None else count(end) for end in bounds)}]"
    return count(figure["value"]) + ends


def _number(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        return float(parse_count(text))
    try:
        return float(text)  # 1.2e21 FLOPs are more than a count holds
    except ValueError:
        raise ConfigError(f"{option} {text}: is no number; write 42, 1e9, 500M or 10B") from None


def _given(text: str | None) -> dict[str, float]:
    """`A=1,B=2` as numbers."""
    given = {}
    for pair in (text or "").split(",") if text else ():
        name, _, value = pair.partition("=")
        try:
            given[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(f"--at {pair}: is not name=number; write --at A=521,B=1488,...") from None
    return given


def _study_options(parser: argparse.ArgumentParser) -> None:
    shared.study(parser, "scaling/books")


def _plan(options: argparse.Namespace) -> int:
    from gpt1_ds.sweep.scaling_sweep import read_sweep

    print(*read_sweep(options.study, options.overrides).table(), sep="\n")
    return 0


def _run_options(parser: argparse.ArgumentParser) -> None:
    _study_options(parser)
    shared.jobs(parser)


def _run(options: argparse.Namespace) -> int:
    """Run the trials that are not done, here, `jobs` at a time."""
    from gpt1_ds.sweep import runner, scaling_collect
    from gpt1_ds.sweep.scaling_sweep import read_sweep
    from gpt1_ds.sweep.study_file import jobs_at_a_time

    sweep = read_sweep(options.study, options.overrides, prepare=True)
    jobs = jobs_at_a_time(sweep.study, options.jobs)
    sweep.check()
    with scaling_collect.growing_table(sweep) as update:
        code = runner.run(sweep, jobs, update)
    scaling_collect.collect(sweep)
    return code


def _submit_options(parser: argparse.ArgumentParser) -> None:
    _run_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print files and commands and exit")


def _submit(options: argparse.Namespace) -> int:
    """Submit the trials that are not done, as SLURM arrays."""
    from gpt1_ds.sweep import arrays
    from gpt1_ds.sweep.scaling_sweep import read_sweep
    from gpt1_ds.sweep.study_file import jobs_at_a_time

    sweep = read_sweep(options.study, options.overrides, prepare=not options.dry_run)
    jobs = jobs_at_a_time(sweep.study, options.jobs)
    last, after_trial = collecting(sweep, options.study, options.overrides)
    numbers, lines = arrays.start(sweep, jobs, last, after_trial, options.dry_run)
    print(*lines, sep="\n")
    if numbers:
        print(f"watch it:  gpt1-ds scaling status {quote(options.study)}; squeue --name={sweep.study.name}")
    return 0


def collecting(sweep: ScalingSweep, study: str, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments of the program for the job after the arrays of a study, which also fits its law, and for a
    task of an array at its end.
    """
    arguments = ["scaling", "collect", study]
    one_node = sweep.trials[0].config.slurm.nodes == 1  # the last job has one node
    last = [*arguments, *(["--missing"] if one_node else []), *(["--fit"] if sweep.has_law else []), *overrides]
    return last, [*arguments, "--growing", *overrides]


def _status(options: argparse.Namespace) -> int:
    from gpt1_ds.sweep.scaling_sweep import read_sweep

    print(*read_sweep(options.study, options.overrides).status(), sep="\n")
    return 0


def _collect_options(parser: argparse.ArgumentParser) -> None:
    _study_options(parser)
    parser.add_argument("--missing", action="store_true", help="first run, here, the cells that are not done")
    parser.add_argument("--fit", action="store_true", help="then fit the law as `scaling fit` does, write report.html")
    parser.add_argument("--growing", action="store_true", help=argparse.SUPPRESS)  # a cell has ended, others run


def _collect(options: argparse.Namespace) -> int:
    from gpt1_ds.scaling.fitting import fit_file, write_fit
    from gpt1_ds.sweep import runner, scaling_collect
    from gpt1_ds.sweep.scaling_sweep import read_sweep

    sweep, code = read_sweep(options.study, options.overrides, prepare=options.missing), 0
    if options.missing:
        sweep.check()
        code = runner.run(sweep, 1, lambda: None)
    share_as(sweep.folder)
    rows = scaling_collect.collect(sweep, options.growing)
    ended = Counter(row["outcome"] for row in rows)
    counted = ", ".join(f"{number} {name}" for name, number in ended.items())
    print(f"{sweep.folder / 'results.csv'}: {amount(len(rows), 'cell')}, {counted}", flush=True)
    if options.fit and code != EXIT_CONTINUE:
        record, predictions = fit_file(sweep.folder / "results.csv")
        write_fit(sweep.folder, record, predictions)
        print("\n".join(describe_fit(record)))
        _publish(sweep.folder, record, predictions, _report_figures(sweep.folder))
    return code


def _report(options: argparse.Namespace) -> int:
    from gpt1_ds.report.scaling_page import write_scaling_report
    from gpt1_ds.sweep.scaling_trials import study_folder

    folder = study_folder(options.study, options.overrides)
    share_as(folder)
    print(write_scaling_report(folder))
    return 0


COMMAND = Group(
    "scaling",
    "how loss falls with depth and data",
    (
        Command("plan", "every cell and what it needs", _plan, _study_options),
        Command("run", "the cells that are not done, here", _run, _run_options),
        Command("submit", "the same, as an array of SLURM jobs", _submit, _submit_options),
        Command("status", "how far every cell is", _status, _study_options),
        Command("collect", "run folders -> results.csv", _collect, _collect_options),
        Command("fit", "the law of loss, from results.csv", _fit, _fit_options),
        Command("predict", "loss, best size and data needed, from a fit", _predict, _predict_options),
        Command("report", "figures and tables as one page", _report, _study_options),
    ),
)
