"""`scaling fit` and `scaling predict`: a law of loss from points, and what it says about untrained runs."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt1_ds.commands.parser import Command
from gpt1_ds.common.errors import ConfigError, DataError, UserError
from gpt1_ds.common.log import say
from gpt1_ds.common.rundir import share_as
from gpt1_ds.common.text import count, parse_count

SHOWN = ("alpha", "beta", "E", "R_D", "R_N", "a", "b")  # A and B are nearly unidentified: in fit.json alone
NOTES = {"a": "N_opt ~ C^a", "b": "D_opt ~ C^b", "E": "nats per token"}


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
    """Fits, writes fit.json and predictions.csv, and prints the parameters, the errors and every warning."""
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
    record, rows = fit_file(file, options.form, options.loss, options.draws, _parameters(options.at), options.seed)
    share_as(out)
    write_fit(out, record, rows)
    if options.study is not None:
        publish(file.parent, record, rows, None if out == file.parent else [])
    print("\n".join(describe_fit(record)))
    print(f"{out / 'fit.json'}, {out / 'predictions.csv'}")
    return 0


def publish(
    folder: Path, record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], figures: Sequence[Path] | None
) -> None:
    """Shows a fit in the W&B run of the study in `folder`, where its cells are tracked, with `figures`; None stands for
    those of the study's report, which is written for them.
    """
    from gpt1_ds.sweep.scaling_wandb import publish_fit, tracking_of

    tracking = tracking_of(folder)
    if tracking is not None:
        publish_fit(folder, tracking, record, rows, report_figures(folder) if figures is None else figures)


def report_figures(folder: Path) -> list[Path]:
    """Writes the report of the study in `folder` and returns its figures as PNG files, none where no library draws
    them.
    """
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
    """Prints what a fit answers to the options."""
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
    """Yields lines for a person: parameters with intervals, errors beside the noise floor, warnings."""
    left_out = "".join(f"; left out: {number} {reason}" for reason, number in record["left_out"].items())
    yield f"{record['form']} ({record['loss']}) on {record['points']} points{left_out}"
    for name in SHOWN:
        if name in record:
            note = f"   {NOTES[name]}" if name in NOTES else ""
            yield f"  {name:6} {record[name]:9.4f}{_interval(record['intervals'].get(name), '9.4f')}{note}"
    starts = record["starts"]
    agreement = f", {starts['agreeing']} of {starts['count']} starts agree" if starts["count"] else ""
    yield f"  objective {record['objective']:.7g}{agreement}"
    noise = record["noise"]
    floor = "no noise floor (no two seeds of one cell)"
    if noise:
        floor = f"noise floor {100 * noise['relative_std']:.2f} % ({noise['runs']} runs of {noise['groups']} cells)"
    yield f"  error of the fit {record['fit_error_percent']:.2f} %; {floor}"
    for row in record["held_out"]:
        predicted = f"{row['predicted']:.4f}{_interval(row['interval'], '.4f')}"
        error = f"{row['error_percent']:+.4f} %"
        yield f"  held out {row['cell']}: {error}: predicted {predicted}, measured {row['loss']:.4f}"
    yield from (f"warning: {line}" for line in record["warnings"])


def describe_answer(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yields lines for a person."""
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


def _parameters(text: str | None) -> dict[str, float]:
    """Returns the numbers of `A=1,B=2` by name. Raises ConfigError for a pair without a number."""
    parameters = {}
    for pair in text.split(",") if text else ():
        name, _, value = pair.partition("=")
        try:
            parameters[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(f"--at {pair}: is not name=number; write --at A=521,B=1488,...") from None
    return parameters


FIT = Command("fit", "the law of loss, from results.csv", _fit, _fit_options)
PREDICT = Command("predict", "loss, best size and data needed, from a fit", _predict, _predict_options)
