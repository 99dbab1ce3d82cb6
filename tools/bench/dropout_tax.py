"""Row 4: what dropout 0.1 at every site costs a step of full-size GPT-1 on a GPU, with either attention and in plain
torch. The contenders are those of row 1, each in a process of its own.
"""

from __future__ import annotations

from tools.bench.gpu_training import KINDS, ROWS, Contender, apart, fastest_plain, in_turns
from tools.bench.rows import Options, Ratio, Row, ratio

APART = True  # torch is imported by other processes
SITES = ("residual", "embedding", "attention")


def measure(options: Options) -> Row:
    compiles = apart("compiles", options)
    plain, tried = fastest_plain(options, compiles)
    names = {**{kind: name for name, kind in KINDS.items()}, "plain": plain}
    contenders = {
        f"{kind} {rate}": Contender(options, name, compiles, tuple(f"model.{site}_dropout={rate}" for site in SITES))
        for rate in ("0", "0.1")
        for kind, name in names.items()
    }
    series = in_turns(contenders, options)
    taxes = {kind: ratio(series, f"{kind} 0", f"{kind} 0.1") for kind in names}
    return Row(
        number=4,
        title="full-size GPT-1 on one GPU with dropout 0.1 and without",
        unit="tokens/s",
        series=series,
        ratios=[
            Ratio("time with dropout / without, fused", taxes["fused"], 1.03, at_least=False),
            Ratio("time with dropout / without, exact", taxes["exact"]),
            Ratio("time with dropout / without, plain torch", taxes["plain"]),
        ],
        configuration={"rows": ROWS[options.quick], "compiled": compiles, "plain": plain},
        checks={"plain settings tried, tokens/s": tried},
    )
