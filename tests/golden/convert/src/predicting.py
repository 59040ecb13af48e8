#!/usr/bin/env python3
"""Makes ./deepseek_v3_predicting: the sample model deepseek_v3 with a layer that predicts the token after the next.

    python predicting.py             writes ./deepseek_v3_predicting/{config.json,model.safetensors}

The layer has the names of published files: a copy of the embedding and of the output layer, two norms, a projection of both
halves, and a layer with experts, all drawn and rounded to bfloat16. Nothing computes it; it is converted there and back.
"""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent.parent / "models/deepseek_v3"


def main():
    config, tensors = json.loads((MODEL / "config.json").read_text()), load_file(MODEL / "model.safetensors")
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    last, new = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    g = torch.Generator().manual_seed(301)

    def drawn(shape, dtype=torch.bfloat16):
        spread = 0.2 if len(shape) == 1 else 1.4 / shape[-1] ** 0.5
        return (torch.randn(shape, generator=g) * spread + (len(shape) == 1)).bfloat16().to(dtype)

    layer = {name.replace(last, new): drawn(t.shape, t.dtype) for name, t in sorted(tensors.items()) if name.startswith(last)}
    layer |= {new + name: drawn((hidden,)) for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
    layer |= {
        new + "eh_proj.weight": drawn((hidden, 2 * hidden)),
        new + "embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(),
        new + "shared_head.head.weight": tensors["lm_head.weight"].clone(),
    }
    folder = HERE / "deepseek_v3_predicting"
    folder.mkdir(exist_ok=True)
    config |= {"num_nextn_predict_layers": 1, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    config.pop("num_mtp_layers", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(tensors | layer, folder / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
