#!/usr/bin/env python3
"""Writes the emulator's entry points from the table of the interface.

    python3 xtask/cann/generate.py SPEC_FOLDER

Reads `ascend-abi.tsv` (columns: symbol, libraries of 8.1 and 9.x, releases, return class, arguments, argument classes)
and writes `crates/cann-emu/src/generated/` and `crates/cann-emu/symbols.tsv`. It never looks at `hccl-sys`: the two sides
of the interface must not have one source. An entry point is implemented when a function of its name stands in
`crates/cann-emu/src/api/`; all others answer "not supported".
"""
import csv, pathlib, re, sys, textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
EMU = ROOT / "crates/cann-emu"
CLASS = {"p": "usize", "i8": "i8", "u8": "u8", "i16": "i16", "u16": "u16", "i32": "i32", "u32": "u32",
         "i64": "i64", "u64": "u64", "f32": "f32", "f64": "f64", "bool": "bool"}
POINTER = {"aclTensor*": "T", "aclTensorList*": "TL", "aclScalar*": "S", "aclScalarList*": "SL",
           "aclIntArray*": "IA", "aclFloatArray*": "FA", "aclBoolArray*": "BA", "char*": "Str"}
SCALAR = {"i8": "I8", "u8": "U8", "i32": "I32", "u32": "U32", "i64": "I64", "u64": "U64", "f32": "F32", "f64": "F64",
          "bool": "Bool"}
UNSUPPORTED = "crate::report::unsupported_code(NAME)"

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
    text = row["arguments"].strip()
    if text in ("", "void"):
        return []
    out = []
    for part in text.split(";"):
        part = part.strip()
        if part in ("", "..."):
            continue
        found = re.match(r"^(.*?)([A-Za-z_]\w*)$", part)
        ctype, name = (found.group(1).strip(), found.group(2)) if found else (part, f"arg{len(out)}")
        out.append((ctype, name))
    return out


def kind(ctype, cls):
    if cls != "p":
        return SCALAR[cls]
    constant = ctype.startswith("const ")
    base = ctype.removeprefix("const ").replace(" ", "").removesuffix("const")
    found = POINTER.get(base, "P")
    return found + "o" if found in ("T", "TL") and not constant else found


def listed(names):
    return textwrap.fill(" ".join(sorted(names)), 110, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def main():
    folder = sys.argv[1]
    table = rows(folder)
    implemented = set()
    for path in (EMU / "src/api").glob("*.rs"):
        implemented |= set(re.findall(r"pub\(crate\) (?:unsafe )?fn ([A-Za-z]\w*)\(", path.read_text()))
    head = "//! Written by `xtask/cann/generate.py` from the table of the interface; do not edit.\n\n"
    ops, plain, skipped = {}, [], []
    for row in table:
        name, classes = row["symbol"], row["abi"].split()
        args = arguments(row)
        if classes == ["v"]:
            classes = []
        if any(c.startswith("s:") or c == "..." for c in classes):
            classes_ok = [c for c in classes if c != "..."]
            if any(c.startswith("s:") for c in classes_ok) and not (name in implemented):
                skipped.append(name)
                continue
            classes = ["i32" if c == "s:HcclConfigValue" else c for c in classes_ok]
        if len(args) != len(classes):
            args = [("void*", f"arg{i}") for i in range(len(classes))]
        if name.startswith("aclnn") and name.endswith("GetWorkspaceSize") and len(classes) >= 2 and "executor" in row["arguments"].lower():
            op = name.removesuffix("GetWorkspaceSize")
            body = ", ".join(f'a{i} "{n}" {kind(c, k)}' for i, ((c, n), k) in enumerate(zip(args[:-2], classes[:-2])))
            lib = row["lib_9.x"].split("|")[0]
            ops.setdefault(lib, []).append(f"op!({op}, emu_{name}, emu_{op}, [{body}]);\n")
        else:
            plain.append((row, classes, args))
    order, count = [], 0
    for lib in sorted(ops):
        module = re.sub(r"\W", "_", lib.removesuffix(".so").removeprefix("lib")) if lib != "-" else "opapi_older"
        chunk = ops[lib]
        order.append(module)
        count += len(chunk)
        (EMU / f"src/generated/{module}.rs").write_text(head + "".join(chunk))
    lines, stubs = [], {}
    for row, classes, args in plain:
        name, ret = row["symbol"], row["ret"]
        if row["abi"] == "v":
            classes = []
        params = [f"a{i}: {CLASS[c]}" for i, c in enumerate(classes)]
        result = "" if ret == "v" else f" -> {CLASS[ret]}"
        values = ", ".join(f"a{i}" for i in range(len(classes)))
        if name in implemented:
            lines.append(f"entry!({name}, emu_{name}, ({', '.join(params)}){result}, ({values}));\n")
        else:
            answer = {"v": "()", "p": "0", "f32": "0.0", "u16": "0", "u32": "0", "u64": "0", "i64": "0"}.get(ret, UNSUPPORTED)
            stubs.setdefault(("()" if ret == "v" else CLASS[ret], answer), []).append(name)
    stubs.setdefault(("i32", UNSUPPORTED), []).extend(skipped)
    (EMU / "src/generated/runtime.rs").write_text(head + "".join(lines))
    lists = [f"absent! {{\n    {typed}, {answer};\n{listed(stubs[typed, answer])}\n}}\n" for typed, answer in sorted(stubs)]
    (EMU / "src/generated/absent.rs").write_text(head + "\n".join(lists))
    mods = ["absent", "runtime"] + order
    (EMU / "src/generated/mod.rs").write_text(
        "//! Entry points, one a symbol of the table; written by `xtask/cann/generate.py`.\n\n"
        + "".join(f"#[rustfmt::skip]\nmod {m};\n" for m in sorted(mods)))
    out = ["symbol\tlib_8.1\tlib_9.1\n"]
    for row in table:
        read = row["headers_read"] + "," + row["docs_only"]
        old = row["lib_8.1"] if row["lib_8.1"] != "-" else "-"
        new = row["lib_9.x"] if row["lib_9.x"] not in ("-", "same") else (row["lib_8.1"] if row["lib_9.x"] == "same" else "-")
        if old != "-" and not re.search(r"(^|,)8\.1", read):
            old = "-"
        old = SHIPPED_WITHOUT_HEADER.get(row["symbol"].removesuffix("GetWorkspaceSize"), old)
        new = new.replace("?", "")
        out.append(f"{row['symbol']}\t{old}\t{new}\n")
        if row["symbol"].startswith("aclnn") and row["symbol"].endswith("GetWorkspaceSize") and "executor" in row["arguments"].lower():
            out.append(f"{row['symbol'].removesuffix('GetWorkspaceSize')}\t{old}\t{new}\n")
    (EMU / "symbols.tsv").write_text("".join(out))
    print(f"{count} operators, {len(lines)} entries implemented, {sum(map(len, stubs.values()))} absent")


main()
