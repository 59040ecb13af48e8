"""Trains a small Punkt model on the text below and writes it in NLTK's forms, with the spans that NLTK finds.

Made with NLTK 3.9.2 (edition 0) and 3.10.4 (edition 1), Python 3.11:

    PYTHONPATH=nltk-3.9.2 python make_punkt_goldens.py train && PYTHONPATH=nltk-3.9.2 python make_punkt_goldens.py spans 0
    NLTK_DATA=. python make_punkt_goldens.py spans 1     # NLTK 3.10 reads its models from its data folders alone
"""

import json
import pathlib
import pickle
import random
import sys

import nltk
from nltk.tokenize import punkt

HERE = pathlib.Path(__file__).parent
MODEL = HERE / "tokenizers" / "punkt_tab" / "small"

TEXT = """
The harbour was quiet that morning. Capt. Morrow walked along the quay with his dog. He had met Dr. Lind and Mr. Okafor there
on Tuesday. They spoke of ropes, e.g. hemp and nylon, and of prices. The dog slept. It was warm, approx. 20 degrees, and no wind blew.
Capt. Morrow wrote to J. S. Brandt at the office. He asked for 3.5 tons of coal, i.e. all they had left. The reply came on the 4. of May.
"We have none!" it said. Was that true? Nobody knew. Dr. Lind laughed... He knew the office well. Mr. Okafor did not laugh.
However, the boat had to leave. The crew, approx. ten men, came on board. J. S. Brandt came too. The office closed at 5. The town slept.
In the evening Capt. Morrow read the news. He read of the U.S. navy and of trade. "The U.S. navy is large," said Dr. Lind. It was late.
The first mate, a Mr. Pell, steered. He steered well, e.g. around rocks. No. 7 was the worst of them. They passed No. 7 at night.
""" * 3

PARTS = (
    "Capt. Morrow|Dr. Lind|Mr. Okafor|J. S. Brandt|No. 7|the U.S. navy|approx. ten|e.g. hemp|He left|The end|however|In May|"
    "3.5|the 4. of|at 5.|.|..|...|. . .|!|?|?!|.\"|.\u201d|.)|!')|--|, |(so.)|[b.]| |  |\n|\n\n|\r\n|\u3000|\x1c|\u2028|\u00bb|\u2019|'|\"|"
    "Straße.|É.|²|①.|٣.|_.|a-approx. The|x.y|www.a.b|。|A.B.C.|-3,5.|.5|*|@"
).split("|")


def train():
    trainer = punkt.PunktTrainer()
    trainer.INCLUDE_ALL_COLLOCS = True
    trainer.train(TEXT)
    parameters = trainer.get_params()
    # The text is too short to find every kind of entry by itself.
    parameters.abbrev_types |= {"capt", "dr", "mr", "e.g", "i.e", "approx", "u.s", "no"}
    parameters.sent_starters |= {"however", "he"}
    parameters.collocations |= {("##number##", "of"), ("no", "##number##"), ("s", "brandt")}
    MODEL.mkdir(parents=True, exist_ok=True)
    lines = {
        "collocations.tab": sorted("\t".join(pair) for pair in parameters.collocations),
        "sent_starters.txt": sorted(parameters.sent_starters),
        "abbrev_types.txt": sorted(parameters.abbrev_types),
        "ortho_context.tab": sorted(f"{word}\t{bits}" for word, bits in parameters.ortho_context.items()),
    }
    for name, all_lines in lines.items():
        (MODEL / name).write_text("\n".join(all_lines), encoding="utf-8")
    tokenizer = punkt.PunktSentenceTokenizer(parameters)
    for protocol in (0, 3):
        (HERE / f"small.{protocol}.pickle").write_bytes(pickle.dumps(tokenizer, protocol=protocol))


class KeepNewlines(punkt.PunktLanguageVars):
    """The rule of preprocess_data.py --keep-newlines: all white space after a mark belongs to its sentence."""

    _period_context_fmt = r"\S*%(SentEndChars)s\s*(?=(?P<after_tok>%(NonWord)s|(?P<next_tok>\S+)))"


def spans(edition):
    where = nltk.data.find("tokenizers/punkt_tab/small/") if edition else str(MODEL)
    parameters = punkt.load_punkt_params(where)
    draw = random.Random(11)
    texts = ["", " ", " \n", "One.", "One. ", " One. Two.", TEXT[:900]]
    texts += ["".join(draw.choice(PARTS) + draw.choice(["", " "]) for _ in range(draw.randrange(2, 16))) for _ in range(200)]
    cases = []
    for text in texts:
        both = [
            list(punkt.PunktSentenceTokenizer(parameters, lang_vars=rules).span_tokenize(text))
            for rules in (punkt.PunktLanguageVars(), KeepNewlines())
        ]
        cases.append({"text": text, "spans": both[0], "keep_newlines": both[1]})
    out = "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"
    (HERE / f"spans.{edition}.json").write_text(out)


if sys.argv[1] == "train":
    train()
else:
    spans(int(sys.argv[2]))
