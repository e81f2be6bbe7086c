"""One page with the curves of several runs: dev/page as the trainer fills it (dev/trainer/run_page.c), without a model."""

import json
import os
import re
import secrets

import logs
import plot

PARTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "dev", "page")
POINTS = 1500  # per curve
COLUMNS = ("step", "seconds", "epoch", "loss", "lr", "grad_norm", "tokens_per_s")
MEANS = ("loss", "grad_norm", "tokens_per_s")


def part(name):
    with open(os.path.join(PARTS, name), encoding="utf-8") as file:
        return file.read()


def columns_of(steps):
    """Returns a list for each column; if there are more steps than POINTS, each point stands for
    several steps (MEANS: their mean, else the last value)."""
    every = len(steps) // POINTS + 1
    groups = [steps[i : i + every] for i in range(0, len(steps), every)]
    columns = {}
    for name in COLUMNS:
        found = [[v for step in group if (v := logs.number(step, name)) is not None] for group in groups]
        columns[name] = [
            None if not values else sum(values) / len(values) if name in MEANS else values[-1] for values in found
        ]
    return columns


def run_of(path, name):
    """Returns the data of a run that the page shows under a name."""
    log = logs.path_of(path)
    steps, lines = [], []
    for event in logs.read(log):
        if logs.is_step(event) and "step" in event:
            while steps and steps[-1]["step"] >= event["step"]:
                steps.pop()
            steps.append(event)
        elif not event.keys().isdisjoint({"command", "val_loss", "test_loss"}):
            lines.append(event)
    return {"name": name, "steps": columns_of(steps), "lines": lines}


def as_script_data(value):
    """Returns JSON that cannot end an HTML element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def write(path, runs):
    data = {"version": "", "samples": [], "runs": [run_of(run, plot.name_of(run, runs)) for run in runs]}
    parts = {
        "nonce": secrets.token_hex(16),
        "style": part("page.css"),
        "script": part("page.js"),
        "data": as_script_data(data),
        "files": "",
    }
    html = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], part("page.html"))
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write(html)
    os.replace(path + ".tmp", path)
