"""Compares the kernels' shares of the peak with committed ones: `just bench-guard`.

Every case is a share of a peak that the same process measured in turn with it, so the load of the machine falls out of it, mostly.
What is left is the noise that stands beside each share in `guard.json`: one and a half times the spread of the runs that recorded
it, and at least a tenth. A case fails if the best of `--runs` runs is below its share by more than that: a kernel that is slower is
so in every run, a neighbour is not. Shares belong to a processor and an instruction set; of others there is nothing to compare.

    python3 docs/benchmarks/guard.py [--runs 3] [--record] [--bench matmul ...] [WORD ...]

`--record` writes what it measures instead, the median of the runs, and keeps the cases that it did not run. Words are those that
cases must contain, as for the benchmarks themselves. Ends with 1 if a case is slower or gone, 2 if there is nothing to compare.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

FILE = pathlib.Path(__file__).with_name("guard.json")
BENCHES = ["matmul", "attention", "fused", "recurrent"]
LEAST_NOISE = 0.10


def processor():
    """Model, family and model number: hypervisors shorten the name."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    fields = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    parts = [fields.get(name, "?") for name in ("model name", "cpu family", "model")]
    return "{}, family {}, model {}".format(*parts)


def run(bench, words):
    """Shares of the cases of one run, and the instruction set."""
    command = ["cargo", "bench", "--locked", "-p", "ms-kernels", "--bench", bench, "--", "--json", "--quick", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {f"{bench}: {re.sub(r' +', ' ', line['case'])}": line["share"] for line in lines}, {
        line["isa"] for line in lines
    }


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--runs", type=int, default=None, help="runs of each benchmark (3, recording 5)")
    args.add_argument("--record", action="store_true", help="write the shares of this machine")
    args.add_argument("--bench", nargs="+", choices=BENCHES, default=BENCHES)
    args.add_argument("words", nargs="*")
    args = args.parse_args()
    runs = args.runs or (5 if args.record else 3)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    found, sets = {}, set()
    for _ in range(runs):
        for bench in args.bench:
            shares, isas = run(bench, args.words)
            sets |= isas
            for case, share in shares.items():
                found.setdefault(case, []).append(share)
    if len(sets) != 1:
        sys.exit(f"expected cases of one instruction set, found {sorted(sets) or 'no case'}")
    machine = f"{processor()}, {sets.pop()}"
    if args.record:
        of = known.setdefault(machine, {})
        for case, shares in found.items():
            middle = statistics.median(shares)
            noise = max(LEAST_NOISE, 1.5 * (max(shares) - min(shares)) / middle)
            of[case] = {"share": round(middle, 3), "noise": round(noise, 2)}
        FILE.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
        print(f"{len(found)} cases of {machine}")
        return
    if machine not in known:
        print(f"{FILE.name} has no shares of {machine}, only of {'; '.join(known) or 'nothing'}; --record adds them")
        sys.exit(2)
    bad = 0
    wanted = {
        case: value
        for case, value in known[machine].items()
        if case.split(":")[0] in args.bench and all(word in case.split(": ", 1)[1] for word in args.words)
    }
    for case, value in wanted.items():
        if case not in found:
            bad += 1
            print(f"{case}: gone")
            continue
        ratio = max(found[case]) / value["share"]
        slow = ratio < 1 - value["noise"]
        bad += slow
        print(f"{'SLOW' if slow else '    '} {ratio:5.2f} of {value['share']:5.3f} (noise {value['noise']:.2f})  {case}")
    for case in found.keys() - wanted.keys():
        print(f"     new: {case}")
    if bad:
        sys.exit(1)


main()
