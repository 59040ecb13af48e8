#!/usr/bin/env python3
"""Writes the quickstart's own small data: conversations.json (ShareGPT form) and quiz/ (MMLU's file layout).

Everything is put together from the tables below with a fixed seed; the results are committed, so users need no
Python. Run it in this folder after changing a table.
"""

import csv
import json
import random
from pathlib import Path

random.seed(20)
HERE = Path(__file__).parent

COMMANDS = {
    "ls": "list the files of a folder",
    "cp": "copy a file",
    "mv": "move or rename a file",
    "rm": "remove a file",
    "cat": "print a file",
    "grep": "find lines that match a pattern",
    "sort": "put lines in order",
    "wc": "count lines, words and bytes",
    "head": "print the first lines of a file",
    "tail": "print the last lines of a file",
    "mkdir": "make a folder",
    "pwd": "print the current folder",
    "chmod": "change the permissions of a file",
    "find": "look for files in a folder tree",
    "diff": "compare two files line by line",
    "tar": "pack files into an archive",
}
RUST = {
    "fn": "starts a function",
    "let": "binds a name to a value",
    "mut": "allows a binding to change",
    "match": "chooses a branch by pattern",
    "struct": "defines a type with fields",
    "enum": "defines a type with variants",
    "trait": "defines shared behaviour",
    "impl": "attaches methods to a type",
    "use": "brings a path into scope",
    "pub": "makes an item visible outside its module",
    "loop": "repeats until a break",
    "return": "leaves a function with a value",
    "const": "names a value known at compile time",
    "unsafe": "marks code the compiler cannot check",
    "async": "marks a function that can be suspended",
    "move": "lets a closure own what it captures",
}
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Norway": "Oslo", "Egypt": "Cairo",
    "Kenya": "Nairobi", "Peru": "Lima", "Cuba": "Havana", "Greece": "Athens", "Poland": "Warsaw", "Chile": "Santiago",
    "Portugal": "Lisbon", "Ireland": "Dublin", "Austria": "Vienna", "Finland": "Helsinki",
}
GREETINGS = [("Hello!", "Hello! What can I do for you?"), ("Hi there.", "Hi! How can I help?"),
             ("Good morning.", "Good morning! What shall we look at?")]


def turn(who, text):
    return {"from": who, "value": text}


def pairs():
    """Question and answer, in several wordings."""
    out = []
    for name, what in COMMANDS.items():
        out.append((f"Which command do I use to {what}?", f"Use `{name}`: it is made to {what}."))
        out.append((f"What does `{name}` do?", f"`{name}` is used to {what}."))
        out.append((f"I want to {what} in a shell. How?", f"Type `{name}`, followed by the names it should work on."))
    for word, what in RUST.items():
        out.append((f"What does `{word}` mean in Rust?", f"In Rust the keyword `{word}` {what}."))
        out.append((f"Which Rust keyword {what}?", f"The keyword `{word}` {what}."))
    for country, city in CAPITALS.items():
        out.append((f"What is the capital of {country}?", f"The capital of {country} is {city}."))
        out.append((f"{city} is the capital of which country?", f"{city} is the capital of {country}."))
    for _ in range(120):
        a, b = random.randint(1, 40), random.randint(1, 40)
        if random.random() < 0.5:
            out.append((f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."))
        else:
            a, b = max(a, b), min(a, b)
            out.append((f"What is {a} minus {b}?", f"{a} minus {b} is {a - b}."))
    return out


def conversations():
    questions = pairs()
    random.shuffle(questions)
    records, at = [], 0
    while at < len(questions):
        turns = []
        if random.random() < 0.2:
            hello, answer = random.choice(GREETINGS)
            turns += [turn("human", hello), turn("gpt", answer)]
        for _ in range(random.choice([1, 1, 1, 2])):
            if at < len(questions):
                question, answer = questions[at]
                turns += [turn("human", question), turn("gpt", answer)]
                at += 1
        records.append({"conversations": turns})
    # Every question once more in another company, so that there are a few hundred conversations.
    random.shuffle(questions)
    records += [{"conversations": [turn("human", q), turn("gpt", a)]} for q, a in questions[:120]]
    return records


def quiz_rows(table, ask):
    rows, names = [], list(table)
    for name in names:
        wrong = random.sample([n for n in names if n != name], 3)
        options = [table[n] for n in [name, *wrong]]
        random.shuffle(options)
        rows.append([ask.format(name), *options, "ABCD"[options.index(table[name])]])
    return rows


def sums():
    rows = []
    for _ in range(21):
        a, b = random.randint(2, 30), random.randint(2, 30)
        options = [a + b, a + b + 1, a + b - 2, a + b + 10]
        random.shuffle(options)
        rows.append([f"What is {a} plus {b}?", *options, "ABCD"[options.index(a + b)]])
    return rows


def main():
    records = conversations()
    lines = ",\n".join(json.dumps(r, ensure_ascii=False) for r in records)
    (HERE / "conversations.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    subjects = {
        "shell_commands": quiz_rows(COMMANDS, "What is the command `{}` for?"),
        "rust_keywords": quiz_rows(RUST, "What does the Rust keyword `{}` do?"),
        "capital_cities": quiz_rows(CAPITALS, "What is the capital of {}?"),
        "simple_sums": sums(),
    }
    for part, rows_of in (("dev", lambda rows: rows[:5]), ("test", lambda rows: rows[5:])):
        folder = HERE / "quiz" / part
        folder.mkdir(parents=True, exist_ok=True)
        for subject, rows in subjects.items():
            with open(folder / f"{subject}_{part}.csv", "w", newline="", encoding="utf-8") as f:
                csv.writer(f, lineterminator="\n").writerows(rows_of(rows))
    print(len(records), "conversations")


if __name__ == "__main__":
    main()
