"""Reward models of transformers through ms-convert and back: the same scores, nothing missing.

    python reward.py MS_CONVERT FOLDER       FOLDER is made, and holds the models

Run last with torch 2.15.0 and transformers 5.23.0.
"""
import pathlib
import subprocess
import sys

import torch
from transformers import AutoModelForSequenceClassification, LlamaConfig, MixtralConfig, Qwen2Config

SIZES = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=32, num_labels=1, pad_token_id=0)
MODELS = {"llama": LlamaConfig(**SIZES), "qwen2, tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
          "mixtral": MixtralConfig(**SIZES, num_local_experts=4)}


def convert(binary, words, source, target):
    subprocess.run([binary, *words.split(), "--load", source, "--save", target, "--force", "-q"], check=True)


def main(binary, folder):
    folder = pathlib.Path(folder)
    ids = torch.arange(1, 9)[None]
    for name, config in MODELS.items():
        own = folder / name.split(",")[0]
        model = AutoModelForSequenceClassification.from_config(config).eval()
        model.save_pretrained(own / "hf")
        convert(binary, "hf mcore --orm --tp 2", own / "hf", own / "mcore")
        convert(binary, "mcore hf", own / "mcore", own / "back")
        (own / "mcore" / "config.json").unlink()
        convert(binary, "mcore hf", own / "mcore", own / "made")
        for way in ("back", "made"):
            again, found = AutoModelForSequenceClassification.from_pretrained(
                own / way, output_loading_info=True, pad_token_id=0)
            assert not found["missing_keys"] and not found["unexpected_keys"], found
            assert torch.equal(again.eval()(ids).logits, model(ids).logits)
            print(f"{name}, {way}: {type(again).__name__}, equal scores")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
