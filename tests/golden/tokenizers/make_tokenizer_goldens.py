"""Writes small vocabularies and what their own programs make of some texts.

    pip install sentencepiece==0.2.3 tiktoken==0.14.0
    python3 tests/golden/tokenizers/make_tokenizer_goldens.py

Any later versions do: the formats are stable. Trained on the prose of this repository, with fixed settings. Writes, next to
itself: unigram.model, bpe.model, words.model (SentencePiece), small.tiktoken, and cases.json: for each vocabulary the texts
and the ids that sentencepiece and tiktoken give.
"""

import base64
import json
import os
from pathlib import Path

import sentencepiece
import tiktoken
from tiktoken._educational import bpe_train

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
CL100K = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""

TEXTS = [
    "",
    " ",
    "Text becomes tokens, tokens become datasets.",
    "  two  spaces   and\ttabs\n\nand lines \r\n end  ",
    "aaaaaaaaaaaaaaaa bbbbbbbbb ======== -------- ........",
    "numbers 0 12 345 6789 3.14 1e-5 2026-11-21",
    "don't can't I'm we'll THEY'VE",
    "ｆｕｌｌ width, ﬁ ligature, ① circled, ½ half, Å Å",
    "é e\u0301 ñ n\u0303 한국어 \u1112\u1161\u11ab",
    "你好，世界。日本語のテキスト",
    "😀 👩\u200d👩\u200d👧 🇩🇪",
    "مرحبا שלום हिन्दी",
    "zero\u200bwidth \ufeffmark soft\u00adhyphen nbsp\u00a0here",
    "a<sep>b <sep> c<sep>",
    "▁ marks ▁▁ of words ▁",
    "\u0000\u0001\u007f controls",
    "https://a.example/path?query=1&other=2#part",
    "fn main() { let x: Vec<u32> = vec![1, 2, 3]; }",
    "   leading and trailing   ",
    "mixed 漢字kanji and Ελληνικά и кириллица",
]


def train(name, corpus, **settings):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_prefix=name,
        num_threads=1,
        minloglevel=2,
        **settings,
    )
    (HERE / f"{name}.vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(HERE / f"{name}.model"))


def main():
    # A model remembers the path it was written to: a name alone says nothing of the machine.
    os.chdir(HERE)
    corpus = []
    for path in [ROOT / "ARCHITECTURE.md", ROOT / "README.md"]:
        corpus += [line for line in path.read_text().splitlines() if line.strip()]
    corpus += ["你好 世界 日本語 テキスト", "größer fließen été naïve", "1 2 3 12 34 56 789"] * 4
    processors = {
        # Unknown characters are <unk>, white space is cleaned.
        "words": train(
            "words", corpus, model_type="unigram", vocab_size=420, character_coverage=1.0, normalization_rule_name="identity",
        ),
        # As T5: NFKC from a table in the model. Bytes for what the vocabulary lacks.
        "unigram": train("unigram", corpus, model_type="unigram", vocab_size=640, byte_fallback=True, character_coverage=0.99),
        # As Llama: text is left as it is; one symbol that is never cut.
        "bpe": train(
            "bpe", corpus, model_type="bpe", vocab_size=700, byte_fallback=True, character_coverage=0.99,
            normalization_rule_name="identity", remove_extra_whitespaces=False, user_defined_symbols=["<sep>"],
        ),
    }
    cases = {name: [[text, processor.encode(text)] for text in TEXTS] for name, processor in processors.items()}
    ranks = bpe_train("\n".join(corpus), 600, CL100K, visualise=None)
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in sorted(ranks.items(), key=lambda item: item[1])]
    (HERE / "small.tiktoken").write_text("".join(lines))
    encoding = tiktoken.Encoding("small", pat_str=CL100K, mergeable_ranks=ranks, special_tokens={})
    cases["tiktoken"] = [[text, encoding.encode(text)] for text in TEXTS]
    rows = [
        f"  {json.dumps(name)}: [\n" + ",\n".join("    " + json.dumps(case, ensure_ascii=True) for case in of) + "\n  ]"
        for name, of in cases.items()
    ]
    (HERE / "cases.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
