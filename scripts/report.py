#!/usr/bin/env python3
"""Sets runs side by side, a column each: what was trained, on what, how fast, with which result.

  scripts/report.py RUN... >REPORT.md

RUN is a directory with a log.jsonl, or a log. If some runs differ in their seeds alone, a second
table has their means.
"""

import argparse
import math
import os
import sys

import logs
from logs import options_of
from tables import table

UNITS = (
    ("loss", "loss, nats per token"),
    ("ppl", "perplexity per token"),
    ("bpb", "bits per byte"),
    ("word_ppl", "perplexity per word"),
    ("pseudo_ppl", "pseudo-perplexity"),
    ("accuracy", "accuracy"),
)
OPTIONS = ("optimizer", "lr", "schedule", "warmup", "weight-decay", "dropout", "seed")
# Paths, and what other rows show.
PLACES = ("input", "output", "resume", "config", "steps", "epochs")


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


def read(run):
    events = logs.read(logs.path_of(run))
    if not logs.series(events, "loss"):
        raise logs.Error(f"{logs.path_of(run)}: no training step in it")
    return events


def shown_options(found):
    """Returns OPTIONS, then the other options of all runs whose values differ."""
    names = [name for name in options_of(found[0]) if all(name in options_of(e) for e in found)]
    differ = [name for name in names if len({str(options_of(e)[name]) for e in found}) > 1]
    return [*OPTIONS, *(name for name in differ if name not in OPTIONS + PLACES)]


def column(events, options):
    """Returns {name of a row: cell} of a run; None if the log lacks the value."""
    start, row = logs.start_of(events), logs.measure(events)
    cells = {key: start.get(key) for key in ("model", "data", "plan", "processor", "products")}
    cells.update({key: options_of(events).get(key) for key in options})
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


def means(groups):
    """Returns a table of the means of groups, (name, logs) each."""
    measures = [[logs.measure(events) for events in found] for _, found in groups]
    keys = {
        "val_loss": "best validation loss",
        "test_loss": "test loss",
        "test_bpb": "test bits per byte",
        "tokens_per_s": "tokens/s",
    }

    def values(rows, key):
        return [row[key] for row in rows if row.get(key) is not None]

    compared = "test_loss" if all(values(rows, "test_loss") for rows in measures) else "val_loss"
    lines = [
        [
            cell(name),
            len(rows),
            *(logs.both([row.get(key) for row in rows]) for key in keys),
            "-"
            if rows is measures[0]
            else logs.show_p(logs.welch_test(values(rows, compared), values(measures[0], compared))),
        ]
        for (name, _), rows in zip(groups, measures)
    ]
    return [
        "Runs that differ in their seeds alone: mean ± standard deviation. p is that of Welch's t "
        f"test (two-sided) of the {keys[compared]}, compared with the first line.",
        "",
        *table(["", "seeds", *keys.values(), "p"], lines),
    ]


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
        found = [read(run) for run in runs]
        options = shown_options(found)
        columns = [column(events, options) for events in found]
    except logs.Error as error:
        sys.exit(f"report.py: {error}")
    print("| |", " | ".join(cell(os.path.normpath(run)) for run in runs), "|")
    print("|---|" + "---|" * len(runs))
    for name in columns[0]:
        cells = [cell(c[name]) for c in columns]
        if any(c != "-" for c in cells):
            print(f"| {name} |", " | ".join(cells), "|")
    groups = logs.by_seed([(os.path.normpath(run), events) for run, events in zip(runs, found)])
    if len(groups) < len(runs):
        print("", *means(groups), sep="\n")


if __name__ == "__main__":
    main()
