#!/usr/bin/env python3
"""What a data set of made-up tokens gives for the orders of this folder, by the definition of a sample.

    python make.py                   writes the `samples` of ./gptdataset/CASE/spec.json anew
    python make.py --check FOLDER    computes those of a folder with real sets again and says how many are equal

The index files are upstream's; see the README. A sample is a stretch of `sequence_length + 1` tokens of the documents in their
order: all but the last are its tokens, all but the first its labels. Needs numpy.
"""

import json
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
# The last token of every sequence that has any, by set.
ENDS = {"c4_text_document": 50256, "shk_text_document": 128001, "wiki_text_document": None}


def lengths(path):
    data = path.read_bytes()
    assert data[:9] == b"MMIDIDX\0\0" and data[17] == 4, "int32 tokens"
    (count,) = struct.unpack("<Q", data[18:26])
    return np.frombuffer(data, "<i4", count, 34)


def made_up(path):
    """Token i of a set is 1000 + i mod 1021, but for ends of sequences."""
    sizes = lengths(path.with_suffix(".idx")).astype(np.int64)
    tokens = 1000 + np.arange(sizes.sum()) % 1021
    if ENDS[path.name] is not None:
        tokens[np.cumsum(sizes)[sizes > 0] - 1] = ENDS[path.name]
    return np.split(tokens, np.cumsum(sizes)[:-1])


def real(path):
    sizes = lengths(path.with_suffix(".idx")).astype(np.int64)
    return np.split(np.fromfile(path.with_suffix(".bin"), "<i4").astype(np.int64), np.cumsum(sizes)[:-1])


class Case:
    def __init__(self, root, folder, sequences):
        self.folder, self.spec = folder, json.loads((folder / "spec.json").read_text())
        self.read = lambda path: sequences(root / path)
        self.sets = {}

    def index(self, name):
        return np.load(self.folder / f"{name}_index.npy")

    def sample(self, split, number):
        s, row, part = self.spec, number, 0
        if s["splits"][split]["type"] == "BlendedDataset":
            part = int(self.index(f"{split}-blend-dataset")[number])
            row = int(self.index(f"{split}-blend-dataset_sample")[number])
        path = s["splits"][split]["parts"][part]["dataset_path"]
        if path not in self.sets:
            self.sets[path] = self.read(path)
        documents, borders = (self.index(f"{split}-{part}-{what}") for what in ("document", "sample"))
        at = int(self.index(f"{split}-{part}-shuffle")[row])
        (first, begin), (last, end) = borders[at], borders[at + 1]
        pieces = []
        for d in range(first, last + 1):
            whole = self.sets[path][documents[d]]
            pieces.append(whole[begin if d == first else 0 : end + 1 if d == last else len(whole)])
        text = np.concatenate(pieces)
        tokens, labels = text[:-1].copy(), text[1:].copy()
        mask, places = np.ones(len(tokens)), np.arange(len(tokens))
        ends = np.flatnonzero(tokens == s["eod"])
        if s["eod_mask_loss"]:
            mask[ends] = 0.0
        if s["reset_position_ids"]:
            for e in ends:
                places[e + 1 :] = np.arange(len(places) - e - 1)
        if s["pad"] is not None:
            mask[labels == s["pad"]] = 0.0
            tokens[tokens == s["pad"]] = 0
            labels[labels == s["pad"]] = 0
        return {"tokens": tokens.tolist(), "labels": labels.tolist(), "loss_mask": mask.tolist(), "position_ids": places.tolist()}


def main():
    if sys.argv[1:2] == ["--check"]:
        root = pathlib.Path(sys.argv[2])
        for folder in sorted((root / "gptdataset").iterdir()):
            case = Case(root, folder, real)
            pairs = [
                (case.sample(split, i), want)
                for split, of in case.spec["splits"].items() if of for i, want in enumerate(of["samples"])
            ]
            print(folder.name, sum(got == {k: want[k] for k in got} for got, want in pairs), "of", len(pairs))
        return
    for folder in sorted((HERE / "gptdataset").iterdir()):
        case = Case(HERE, folder, made_up)
        for split, of in case.spec["splits"].items():
            if of:
                of["samples"] = [case.sample(split, i) for i in range(min(2, of["len"]))]
        (folder / "spec.json").write_text(json.dumps(case.spec, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
