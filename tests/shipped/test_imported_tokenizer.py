"""A stranger's tokenizer and Parquet files, from the first command to a trained model."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.unit.data.formats import DOCUMENTS, write_parquet
from tests.unit.data.tokenizers.t5_files import spiece_model
from tools.cluster import Result

TINY = "model.layers=1 model.width=32 model.heads=2 model.context=64 train.global_batch=4 train.micro_batch=2"


def test_a_family_trains_where_its_roles_are_there(
    gpt1: Callable[..., Result], program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "any.model").write_bytes(spiece_model(control_symbols="[CLS],[SEP],<hidden>", model_type="bpe"))
    write_parquet(tmp_path / "a.parquet", DOCUMENTS * 3)

    def run(arguments: str, code: int = 0) -> str:
        done = gpt1(*arguments.split())
        assert done.code == code, done.err
        return done.err

    build = "data build --input a.parquet --sentences --workers 1 --validation 0.1"
    pairs = f"pretrain -c pretrain/bert_books_cpu {TINY} train.steps=2"
    for name, role in (("without", ""), ("named", " --role mask=<hidden>")):
        run(f"tokenizer import --sentencepiece any.model --out tok_{name}{role}")
        run(f"{build} --tokenizer tok_{name} --out data_{name}")
    error = run(f"{pairs} data.path=data_without", code=2)
    assert "needs a token <mask>: the tokenizer has none" in error
    assert error.count("\n") == 1
    done = program(*pairs.split(), "data.path=data_named")
    assert done.returncode == 0, done.stderr
    assert "done after step 2" in done.stderr
