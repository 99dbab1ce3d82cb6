"""`sample`: text from a checkpoint."""

from __future__ import annotations

import argparse
import json

from gpt1_ds.commands import options as shared
from gpt1_ds.commands.parser import Command
from gpt1_ds.common import log
from gpt1_ds.common.files import append
from gpt1_ds.common.text import shown


def _add_options(parser: argparse.ArgumentParser) -> None:
    shared.checkpoint(parser)
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--prompt", metavar="TEXT", help="what the text begins with (default: none)")
    source = "what an encoder-decoder reads; <extra_id_0> stands for the first span to fill in (default: none)"
    text.add_argument("--source", metavar="TEXT", help=source)
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens to add at most (default: 100)")
    temperature = "how freely tokens are drawn; 0 takes the likeliest one (default: %(default)s)"
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T", help=temperature)
    top_k = "draw from the K likeliest; 0: all (default: %(default)s)"
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help=top_k)
    top_p = "draw from the likeliest ones that make up the probability P; 1: all (default: %(default)s)"
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help=top_p)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the draws (default: %(default)s)")


def _run(options: argparse.Namespace) -> int:
    from gpt1_ds.evaluation.sampling import Sampling
    from gpt1_ds.launcher import libraries

    sampling = Sampling(options.tokens, options.temperature, options.top_k, options.top_p, options.seed)
    libraries.load()
    from gpt1_ds.evaluation.generate import answer, generate
    from gpt1_ds.evaluation.load import load_checkpoint

    loaded = load_checkpoint(options.checkpoint)
    if options.source is None:
        prompt, text = options.prompt, generate(loaded, options.prompt, sampling)
        print(shown(prompt + text))
    else:
        prompt, text = options.source, answer(loaded, options.source, sampling)
        print(shown(text))
    run = loaded.folder.parent.parent
    if (run / "config.yaml").exists():  # the run's report shows its samples
        try:
            append(run / "samples.jsonl", json.dumps({"step": loaded.step, "prompt": prompt, "text": text}) + "\n")
        except OSError as error:
            log.say(f"{run / 'samples.jsonl'}: not kept for the run's report: {error.strerror}")
    return 0


COMMAND = Command("sample", "text from a checkpoint", _run, _add_options)
