#!/usr/bin/env python3
"""Writes the emulator's table of the interface.

    python3 xtask/cann/generate.py SPEC_FOLDER

Reads `ascend-abi.tsv` (columns: symbol, libraries of 8.1 and 9.x, releases, return class, arguments, argument classes)
and writes `crates/cann-emu/interface.tsv`, from which the crate's build script makes the entry points and the crate the
libraries of a release. It never looks at `hccl-sys`: the two sides of the interface must not have one source.
"""
import csv, pathlib, re, sys

EMU = pathlib.Path(__file__).resolve().parents[2] / "crates/cann-emu"
POINTER = {"aclTensor*": "T", "aclTensorList*": "TL", "aclScalar*": "S", "aclScalarList*": "SL",
           "aclIntArray*": "IA", "aclFloatArray*": "FA", "aclBoolArray*": "BA", "char*": "Str"}

# Operators of 8.1's libraries that no header of 8.1 declares. The rotation: `ascend-abi.md`, section on positions; its
# gradient: MindSpeed's extension `npu_rotary_position_embedding` names both, and was published for CANN 8.0 and 8.1. The
# check of gradients: its page in the operator repository of that time, and adapters for 8.0 that call nothing else.
SHIPPED_WITHOUT_HEADER = {
    "aclnnRotaryPositionEmbedding": "libopapi.so",
    "aclnnRotaryPositionEmbeddingGrad": "libopapi.so",
    "aclnnForeachNonFiniteCheckAndUnscale": "libopapi.so",
}


def rows(folder):
    last = {}
    with open(pathlib.Path(folder) / "ascend-abi.tsv", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            last[row["symbol"]] = row  # of two rows, the later release
    return [last[name] for name in sorted(last)]


def arguments(row):
    """The C type and the name of each argument."""
    parts = [part.strip() for part in row["arguments"].split(";")]
    found = [re.match(r"^(.*?)([A-Za-z_]\w*)$", part) for part in parts if part not in ("", "void", "...")]
    return [(match.group(1).strip(), match.group(2)) for match in found if match]


def kind(ctype, cls):
    """What a parameter of an operator is: a class of pointer, or the type of a number."""
    if cls != "p":
        return cls
    base = ctype.removeprefix("const ").replace(" ", "").removesuffix("const")
    found = POINTER.get(base, "P")
    return found + "o" if found in ("T", "TL") and not ctype.startswith("const ") else found


def implemented():
    """Functions that the emulator has: those of these names in `src/api`."""
    texts = [path.read_text() for path in (EMU / "src/api").glob("*.rs")]
    return {name for text in texts for name in re.findall(r"pub\(crate\) (?:unsafe )?fn ([A-Za-z]\w*)\(", text)}


def libraries(row, name):
    old = row["lib_8.1"]
    new = old if row["lib_9.x"] == "same" else row["lib_9.x"].replace("?", "")
    if not re.search(r"(^|,)8\.1", row["headers_read"] + "," + row["docs_only"]):
        old = "-"
    return [SHIPPED_WITHOUT_HEADER.get(name, old), new]


def line(row, have):
    name, args = row["symbol"], arguments(row)
    classes = [] if row["abi"] == "v" else [c for c in row["abi"].split() if c != "..."]
    if name.startswith("aclnn") and name.endswith("GetWorkspaceSize") and "executor" in row["arguments"].lower():
        name = name.removesuffix("GetWorkspaceSize")
        if len(args) != len(classes):
            args = [("void*", f"arg{i}") for i in range(len(classes))]
        named = [f"{n}:{kind(c, k)}" for (c, n), k in zip(args[:-2], classes[:-2])]
        return [name, *libraries(row, name), "operator", "i32", " ".join(named)]
    if name not in have:
        return [name, *libraries(row, name), "absent", row["ret"] if "s:" not in row["abi"] else "i32", ""]
    # The only struct that comes by value holds one integer.
    classes = ["i32" if c == "s:HcclConfigValue" else c for c in classes]
    return [name, *libraries(row, name), "function", row["ret"], " ".join(classes)]


def main():
    have = implemented()
    lines = [line(row, have) for row in rows(sys.argv[1])]
    head = ["symbol", "lib_8.1", "lib_9.1", "kind", "result", "arguments"]
    (EMU / "interface.tsv").write_text("".join("\t".join(fields) + "\n" for fields in [head, *lines]))
    kinds = [fields[3] for fields in lines]
    print(", ".join(f"{kinds.count(kind)} {kind}" for kind in ("operator", "function", "absent")))


main()
