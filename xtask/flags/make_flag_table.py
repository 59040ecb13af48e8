"""Writes crates/ms-cli/src/megatron/flags.tsv, upstream's facts of its flags.

    python3 xtask/flags/make_flag_table.py SPEC_DIR

SPEC_DIR holds flags.csv and flags_all.csv: the argparse facts (arity, type, dest, default, choices) of
MindSpeed-LLM v2.0.0 with Megatron core_r0.8.0, and of its August 2026 head with core_v0.12.1.
What a program supports stands in the program (the options that it reads); what it takes without effect or
refuses, and why, in others.tsv beside flags.tsv.

Columns of the table (tab separated, one line per flag and set of programs):
  flag      with its dashes
  tools     programs that parse it: train infer eval preprocess convert1 convert2
  versions  both | v2.0.0 | head
  arity     0 1 ? * +
  type      true false (arity 0: the value it stores) str int float bool json freq think
  dest      name in the parsed object; "old|new" when v2.0.0 and head differ
  default   JSON; "old|new" when they differ
  choices   comma separated, or empty; c@v2.0.0, c@head: in that version only
"""

import csv
import json
import sys
from pathlib import Path

import corrections

HERE = Path(__file__).resolve().parent
OUT = HERE.parent.parent / "crates/ms-cli/src/megatron/flags.tsv"
COMPUTED = {
    "2 ** 32": 2.0**32,
    "10 * 1024 * 1024": 10 * 1024 * 1024,
    "int(os.getenv('LOCAL_RANK', '0'))": 0,
    "TEMPLATES_DIR": None,
    "AttnBackend.auto": "auto",
}
CHOICES = {
    "range(0, 3)": ["0", "1", "2"],
    "list(AttnBackend)": ["flash", "fused", "unfused", "local", "auto"],
    "[e.value for e in StrictHandling]": [
        "assume_ok_unexpected", "log_unexpected", "log_all", "raise_unexpected", "raise_all",
        "return_unexpected", "return_all", "ignore_all",
    ],
    "_QUANT_STATE_CHOICES": [],
}


def value(text, kind):
    if text in ("", "None"):
        return None if text == "None" or kind != "str" else ""
    if text.startswith("`"):
        return COMPUTED[text.strip("`")]
    if text.startswith("["):
        return json.loads(text)
    if kind in ("true", "false", "bool"):
        return text == "True"
    if kind == "int":
        return int(float(text))
    if kind == "float":
        return float(text)
    return text


def kind(row):
    t = row["type"]
    if row["arity"] == "0":
        # argparse's store_false switches are the ones whose default is true, but for one that is already on.
        return "false" if row["default"] == "True" and row["flag"] not in corrections.STORE_TRUE_ANYWAY else "true"
    if t in ("int", "float", "str", "bool"):
        return t
    if t == "json.loads":
        return "json"
    if t == "moe_freq_type":
        return "freq"
    if t.startswith("lambda x: {'true'"):
        return "think"
    return "str"


def upstream(row, tools):
    k = kind(row)
    old = row["dest"].removeprefix("deprecated_").removesuffix("_deprecated")
    new = row["dest"]
    default = value(row["default"], k)
    text = json.dumps(default, ensure_ascii=False)
    if row["default_v2.0.0_if_different"]:
        before = json.dumps(value(row["default_v2.0.0_if_different"], k), ensure_ascii=False)
        text = f"{before}|{text}" if before != text else text
    choices = row["choices"]
    if choices.startswith("`"):
        choices = CHOICES[choices.strip("`")]
    else:
        choices = [c for c in json.loads(choices or "[]") if c is not None]
    status = row["status"]
    versions = {"": "both", "both": "both", "HEAD-only": "head", "v2.0.0-only": "v2.0.0"}[status]
    return {
        "flag": row["flag"], "tools": tools, "versions": versions, "arity": row["arity"], "type": k,
        "dest": new if old == new or versions == "head" else f"{old}|{new}",
        "default": text, "choices": ",".join(str(c) for c in choices),
    }


def main(spec):
    rows = []
    trainer = {}
    # The csv of every trainer flag says "HEAD-only" of flags that only evaluation.py and preprocess_data.py knew before.
    for row in csv.DictReader(open(spec / "flags_all.csv", encoding="utf-8")):
        trainer[row["flag"]] = row
        overridden = corrections.OTHER_ROWS.get(row["flag"], {})
        tools = [t for t in ("train", "infer", "eval") if t not in overridden]
        rows.append(upstream(row, ",".join(tools)))
        for tool, change in overridden.items():
            rows.append(upstream({**row, **change}, tool))
    known = {}
    for row in csv.DictReader(open(spec / "flags.csv", encoding="utf-8")):
        tool = {"preprocess_data.py": "preprocess", "convert_ckpt.py": "convert1", "convert_ckpt_v2.py": "convert2"}.get(row["tool"])
        if tool is None or row["status"] == "undefined-upstream":
            continue
        row = {**row, "status": {"convert1": "", "convert2": ""}.get(tool, row["status"])}
        rows.append(upstream(row, tool))
        known.setdefault(tool, set()).add(row["flag"])
    for tool, flags in corrections.UNUSED_BY_SCRIPTS.items():
        for flag, (arity, k, default, choices, *versions) in flags.items():
            if flag not in known[tool]:
                rows.append({
                    "flag": flag, "tools": tool, "versions": versions[0] if versions else "both", "arity": arity, "type": k,
                    "dest": flag[2:].replace("-", "_"), "default": json.dumps(default), "choices": choices,
                })
    for row in rows:
        if row["tools"] not in ("preprocess", "convert1", "convert2") and row["flag"] in corrections.MORE_CHOICES:
            row["choices"] = ",".join([row["choices"], *corrections.MORE_CHOICES[row["flag"]]])
    columns = ["flag", "tools", "versions", "arity", "type", "dest", "default", "choices"]
    rows.sort(key=lambda r: (r["flag"], r["tools"]))
    with open(OUT, "w", encoding="utf-8") as out:
        out.write("# Made by xtask/flags/make_flag_table.py; its head explains the columns.\n")
        for row in rows:
            out.write("\t".join(row[c] for c in columns) + "\n")
    print(len(rows), "rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
