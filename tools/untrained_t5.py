"""Writes a T5 that was never trained as a folder of transformers, with a vocabulary learned from your texts.

    python tools/untrained_t5.py --text data/multi30k/train.en data/multi30k/train.de --out FOLDER
        [--vocab-size 8000] [--width 256] [--layers 3] [--heads 4] [--seed 1]

The vocabulary is SentencePiece's unigram model, like the paper's, but without its 100 sentinels, which no translation
needs. The folder is where two programs begin that are to be compared from the same weights (tools/tasks_beside.py).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import sentencepiece
import transformers

PAD, END, UNKNOWN = 0, 1, 2  # T5's own numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files, a sentence a line")
    parser.add_argument("--out", type=Path, required=True)
    for name, value in (("vocab-size", 8000), ("width", 256), ("layers", 3), ("heads", 4), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        input=[*map(str, options.text)], model_prefix=str(options.out / "spiece"), model_type="unigram",
        vocab_size=options.vocab_size, pad_id=PAD, eos_id=END, unk_id=UNKNOWN, bos_id=-1, num_threads=1,
        minloglevel=1,
    )  # fmt: skip
    spelled = transformers.T5Tokenizer.from_pretrained(options.out, extra_ids=0)
    spelled.save_pretrained(options.out)
    transformers.set_seed(options.seed)
    shape = transformers.T5Config(
        vocab_size=len(spelled), d_model=options.width, d_kv=options.width // options.heads, num_heads=options.heads,
        d_ff=4 * options.width, num_layers=options.layers, num_decoder_layers=options.layers,
        pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(shape)
    model.save_pretrained(options.out)
    print(f"{options.out}: a T5 of {model.num_parameters():,} weights and {len(spelled):,} pieces, untrained")


if __name__ == "__main__":
    main()
