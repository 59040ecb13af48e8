#!/usr/bin/env python3
"""What Megatron-LM's own classes give for artificial data (`--mock-data`).

    python make_mock.py MEGATRON > mock.json

MEGATRON is a checkout of Megatron-LM core_v0.12.1 in which `megatron/core/datasets/helpers.cpp` was built (needs numpy,
torch and pybind11). Index files are described by their SHA-256, as upstream writes them with `--data-cache-path`.
"""

import hashlib
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, sys.argv[1])

from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset  # noqa: E402


class NullTokenizer:
    """Of a tokenizer a set asks for the end of document and for a description."""

    eod = 4999

    def __init__(self):
        self.unique_identifiers = {"class": "_AutoTokenizer", "tokenizer_path": ["somewhere"]}


def case(row, seed, sizes, **flags):
    with tempfile.TemporaryDirectory() as cache:
        config = GPTDatasetConfig(
            random_seed=seed, sequence_length=row, blend=None, blend_per_split=None, split="90,9,1", path_to_cache=cache,
            tokenizer=NullTokenizer(), create_attention_mask=False, **flags,
        )
        built = BlendedMegatronDatasetBuilder(MockGPTDataset, sizes, lambda: True, config).build()
        splits = {}
        for name, data in zip(["train", "valid", "test"], built):
            stem = data.unique_description_hash
            files = sorted(pathlib.Path(cache).glob(f"{stem}-*"))
            samples = [{k: v.tolist() for k, v in data[i].items()} for i in (0, len(data) - 1)]
            splits[name] = {
                "length": len(data), "sequences": [int(data.indices[0]), int(data.indices[-1]) + 1], "samples": samples,
                "hash": stem, "description": data.unique_description,
                "files": {f.name.rsplit("-", 1)[1]: hashlib.sha256(f.read_bytes()).hexdigest() for f in files},
            }
        return {"row": row, "seed": seed, "sizes": sizes, "flags": flags, "eod": NullTokenizer.eod, "splits": splits}


def main():
    off = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False)
    on = dict.fromkeys(off, True)
    # The last case takes more than one epoch of a third of the set.
    cases = [case(48, 1234, [40, 16, 8], **off), case(8192, 7, [3, 2, 1], **on), case(1 << 16, 42, [1200, 5, 5], **off)]
    for one in cases:
        if one["row"] > 64:  # long rows: sums say as much
            for split in one["splits"].values():
                split["samples"] = [{k: sum(v) for k, v in s.items()} for s in split["samples"]]
    print(json.dumps({"cases": cases}, separators=(",", ":")))


if __name__ == "__main__":
    main()
