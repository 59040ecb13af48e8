"""What all checks share: lines of the table, the programs, comparisons."""

import argparse
import contextlib
import pathlib
import shutil
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file

ROWS = []


def row(part, what, ok, detail=""):
    ROWS.append((part, what, "ok" if ok else "FAILED", detail))
    print(f"{'ok    ' if ok else 'FAILED'} {part}: {what} {detail}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def one(part, what):
    """A line of the table, also where something is raised."""
    details = []
    try:
        yield details
    except Exception as e:  # whatever a package raises is a result
        row(part, what, False, f"{type(e).__name__}: {str(e).splitlines()[0][:160] if str(e) else ''}")
    else:
        row(part, what, True, "; ".join(details))


class Tools:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()

    def run(self, tool, *args):
        done = subprocess.run([self.folder / tool, *map(str, args), "-q"], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{tool}: {done.stderr.strip()}")
        return done.stdout

    def convert(self, kind, source, target, *more):
        shutil.rmtree(target, ignore_errors=True)
        self.run("ms-convert", *kind.split(), "--load", source, "--save", target, "--no-sync", *more)
        return target

    def logits(self, folder, ids, scratch):
        save_file({"input_ids": ids}, scratch / "ids.safetensors")
        out = scratch / "logits.safetensors"
        self.run("ms-infer", "logits", "--load", folder, "--input", scratch / "ids.safetensors", "--output", out)
        return load_file(out)["logits"]


def hf_tensors(folder):
    """Every tensor of a Hugging Face folder, whatever its files."""
    all_ = {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.name != "reference.safetensors":
            all_ |= load_file(path)
    for path in sorted(folder.glob("pytorch_model*.bin")):
        all_ |= torch.load(path, weights_only=True)
    return all_


def same(a, b):
    """Number of tensors, all equal bit by bit; tables of frequencies are not weights."""
    a, b = ({n: t for n, t in x.items() if not n.endswith("inv_freq")} for x in (a, b))
    if a.keys() != b.keys():
        raise AssertionError(f"other names: {sorted(a.keys() ^ b.keys())[:4]}")
    for name in a:
        if a[name].dtype != b[name].dtype or a[name].shape != b[name].shape:
            raise AssertionError(f"{name}: {a[name].dtype} {tuple(a[name].shape)}, {b[name].dtype} {tuple(b[name].shape)}")
        if not torch.equal(a[name], b[name]):
            raise AssertionError(f"{name}: other values")
    return len(a)


def near(got, want, tolerance):
    difference = (got.float() - want.float()).abs().max().item()
    if not difference <= tolerance:
        raise AssertionError(f"logits differ by {difference:.2e}, allowed {tolerance:.1e}")
    return f"max abs difference {difference:.1e}"


def load_pt(path):
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, weights_only=True)


def flat(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif torch.is_tensor(value):
            yield f"{prefix}{key}", value
