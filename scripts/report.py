#!/usr/bin/env python3
"""Sets runs side by side, a column each: what was trained, on what, how fast, with which result.

  scripts/report.py RUN... >REPORT.md

RUN is a directory with a log.jsonl, or a log.
"""

import argparse
import math
import os
import sys

import logs

UNITS = (
    ("loss", "loss, nats per token"),
    ("ppl", "perplexity per token"),
    ("bpb", "bits per byte"),
    ("word_ppl", "perplexity per word"),
    ("pseudo_ppl", "pseudo-perplexity"),
    ("accuracy", "accuracy"),
)
OPTIONS = ("optimizer", "lr", "schedule", "warmup", "weight-decay", "dropout", "seed")


def measured(event, split, unit):
    """Returns a measure as text. A perplexity that overflows is null in the log: inf if the loss is
    a number."""
    key = f"{split}_{unit}"
    if key not in event:
        return None
    value = logs.number(event, key)
    if value is None and unit.endswith("ppl") and logs.number(event, f"{split}_loss") is not None:
        value = math.inf
    return logs.show(value)


def column(run):
    """Returns {name of a row: cell} of a run; None if the log lacks the value."""
    events = logs.read(logs.path_of(run))
    if not logs.series(events, "loss"):
        raise logs.Error(f"{logs.path_of(run)}: no training step in it")
    start, row = logs.start_of(events), logs.measure(events)
    cells = {key: start.get(key) for key in ("model", "data", "plan", "processor", "products")}
    cells.update({key: start.get("options", {}).get(key) for key in OPTIONS})
    epoch = logs.last(logs.values(events, "epoch"))
    cells.update(
        {
            "steps": row["steps"],
            "epochs": None if epoch is None else f"{epoch:.6g}",
            "time": None if row["seconds"] is None else logs.duration(row["seconds"]),
            "tokens/s, median": row["tokens_per_s"] and f"{row['tokens_per_s']:.0f}",
        }
    )
    best = next((e for e in reversed(events) if e.get("best") is True), {})
    test = next((e for e in reversed(events) if "test_loss" in e), {})
    for unit, name in UNITS:
        cells[f"best validation {name}"] = measured(best, "val", unit)
        cells[f"test {name}"] = measured(test, "test", unit)
    return cells


def cell(value):
    """Returns the text of a cell, in one line and with its bars escaped."""
    text = "" if value is None else str(value)
    return " ".join(text.split()).replace("|", "\\|") or "-"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, prog="report.py", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    runs = parser.parse_args().runs
    try:
        columns = [column(run) for run in runs]
    except logs.Error as error:
        sys.exit(f"report.py: {error}")
    print("| |", " | ".join(cell(os.path.normpath(run)) for run in runs), "|")
    print("|---|" + "---|" * len(runs))
    for name in columns[0]:
        cells = [cell(c[name]) for c in columns]
        if any(c != "-" for c in cells):
            print(f"| {name} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
