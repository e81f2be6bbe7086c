#!/usr/bin/env python3
"""The logs of runs: read, summed up and thinned; and the statistics that tables are made of.

  scripts/logs.py RUN/log.jsonl [EVERY] >THIN.jsonl

writes what plots and tables need of a log: every 50th step, of each 50 steps the one with the
largest gradient norm, all that is not a step, and a last line with what only the whole log has.
"""

import json
import math
import os
import re
import statistics
import sys

THIN_EVERY = 50  # steps
LAST_STEPS = 100  # their mean loss is "the training loss at the end"


class Error(Exception):
    """An error message of one line for the user."""


class UsageError(Exception):
    """Wrong or contradictory options."""


# ---- reading


def path_of(run):
    """Returns the path of a run's log. A run is named by its directory or by the log itself."""
    path = os.path.join(run, "log.jsonl") if os.path.isdir(run) else run
    if not os.path.isfile(path):
        raise Error(f"{run if path == run else path}: no such file")
    return path


def read(path):
    """Returns the lines of a log as dictionaries, without an incomplete last line."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    events = []
    for number, line in enumerate(lines, 1):
        try:
            events.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise Error(f"{path}, line {number}: is no JSON") from error
    return events


def is_step(event):
    return "loss" in event and "event" not in event


def number(event, key):
    """Returns a member that is a finite number; None if it is missing or null."""
    value = event.get(key)
    finite = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if finite and math.isfinite(value) else None


def series(events, key):
    """Returns [(step, value, seconds)] of all lines with that number. If a run was resumed, its
    later lines replace earlier ones of the same steps."""
    found = []
    for event in events:
        value = number(event, key)
        if value is None or "step" not in event or "event" in event:
            continue
        while found and found[-1][0] >= event["step"]:
            found.pop()
        found.append((event["step"], value, event.get("seconds", 0.0)))
    return found


def values(events, key):
    return [value for event in events if (value := number(event, key)) is not None]


def start_of(events):
    """Merges the start of a run and each resume; the last value of a member counts."""
    told = {}
    for event in events:
        if event.get("event") in ("start", "resume"):
            told.update(event)
    return told


# ---- what a run reports


def least(numbers):
    return min(numbers, default=None)


def last(numbers):
    return numbers[-1] if numbers else None


def low_median(numbers):
    return sorted(numbers)[(len(numbers) - 1) // 2] if numbers else None


def last_loss(events):
    """Returns the mean loss of the last steps; None if a thinned log lacks some of them."""
    losses = series(events, "loss")
    end = losses[-1][0] if losses else 0
    found = [loss for step, loss, _ in losses if step > end - LAST_STEPS]
    return mean(found) if len(found) == LAST_STEPS else None


def of_whole_log(events):
    """Returns the measures that thinning would change."""
    thinned = next((e for e in events if e.get("event") == "thinned"), {})
    steps = [event for event in events if is_step(event)]
    return {
        "ms": thinned.get("ms", low_median(values(steps, "ms"))),
        "tokens_per_s": thinned.get("tokens_per_s", low_median(values(steps, "tokens_per_s"))),
        "last_loss": thinned.get("last_loss", last_loss(events)),
        "below_4_seconds": thinned.get(
            "below_4_seconds",
            next((e.get("seconds") for e in steps if number(e, "loss") and e["loss"] < 4), None),
        ),
    }


def machine_of(start):
    """Returns the processor and the library, without parts that differ between two calls."""
    parts = [start.get("processor"), (start.get("products") or "").split(", peak")[0]]
    return ", ".join(part for part in parts if part) or None


def measure(events):
    """Returns everything about a run that the tables of comparisons show."""
    start = start_of(events)
    val_loss = values(events, "val_loss")
    model = start.get("model", "").split(", ")
    row = {
        "parameters": int(model[1].split()[0]) if len(model) > 1 else None,
        "processor": start.get("processor"),
        "machine": machine_of(start),
        "steps": last(values(events, "step")),
        "state": int(start["decoding_state_bytes"]) if "decoding_state_bytes" in start else None,
        "seconds": last(values(events, "seconds")),
        "val_loss": least(val_loss),
        "last_val_loss": last(val_loss),
        "val_ppl": perplexity(least(val_loss)),
        "val_word_ppl": least(values(events, "val_word_ppl")),
        "grad_norm": max(values(events, "grad_norm"), default=None),
        "attention_max": max(values(events, "val_attention_max_abs"), default=None),
        "saturated": last(values(events, "val_saturated_share")),
        "val_tokens": last(values(events, "val_tokens")),
        "test_tokens": last(values(events, "test_tokens")),
    }
    for key in ("test_loss", "test_ppl", "test_word_ppl", "test_bpb", "test_accuracy"):
        row[key] = last(values(events, key))
    row.update(of_whole_log(events))
    row.update(measure_statistics(events))
    return row


def measure_statistics(events):
    """Returns the measures of --stats at the end: for each layer the mean excess kurtosis of its
    weights, and the kurtosis and the largest value of the residual stream after it; and the sink's
    share."""
    weights, activations, largest, shares = {}, {}, {}, {}
    for event in events:
        if event.get("event") != "statistics":
            continue
        kurtosis = number(event, "kurtosis")
        if "tensor" in event and kurtosis is not None:
            layer = next((int(p) + 1 for p in event["tensor"].split(".") if p.isdigit()), 0)
            weights.setdefault(layer, []).append(kurtosis)
        elif event.get("place") == "residual" and event["layer"] > 0:
            activations[event["layer"]] = kurtosis  # the later one if a run measured twice
            largest[event["layer"]] = number(event, "max_abs")
        if number(event, "sink_share") is not None:
            shares[event["place"] == "key_weights", event["layer"]] = event["sink_share"]
    known = [x for x in activations.values() if x is not None]
    return {
        "weight_kurtosis": mean([x for layer in weights.values() for x in layer]),
        "activation_kurtosis": mean(known),
        "largest_activation": max((x for x in largest.values() if x is not None), default=None),
        "sink_share": mean(list(shares.values())),
        "layers": [
            (layer, mean(weights.get(layer, [])), activations[layer], largest[layer])
            for layer in sorted(activations)
        ],
    }


# ---- thinning


def shorten(value):
    """Rounds floats to seven digits."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


# Members that follow from others and that no table shows.
UNUSED = ("peak_fraction", "max_abs_over_std", "n", "mean", "std", "memory")


def is_used(event):
    """Returns whether tables use a line: of --stats only weights, the residual stream and the
    sink's share."""
    return (
        event.get("event") != "statistics"
        or "tensor" in event
        or "sink_share" in event
        or event.get("place") == "residual"
    )


def thin(events, every=THIN_EVERY):
    """Returns the lines of a log that are kept."""
    if any(event.get("event") == "thinned" for event in events):
        return events
    largest = {}  # norm and step, for each window of steps
    for event in events:
        if is_step(event) and number(event, "grad_norm") is not None:
            window = (event["step"] - 1) // every
            largest[window] = max(largest.get(window, (0, 0)), (event["grad_norm"], event["step"]))
    steps = {step for _, step in largest.values()} | {1}
    kept = [
        {key: shorten(value) for key, value in event.items() if key not in UNUSED}
        for event in events
        if is_used(event)
        and (not is_step(event) or event["step"] % every == 0 or event["step"] in steps)
    ]
    whole = {key: shorten(x) for key, x in of_whole_log(events).items() if x is not None}
    return kept + [{"event": "thinned", "every": every, **whole}]


def evenly_spaced(events):
    """Returns a log without the steps that thinning kept for their large norms: a mean with them is
    too large."""
    every = next((e["every"] for e in events if e.get("event") == "thinned"), 1)
    return [e for e in events if not is_step(e) or e["step"] % every == 0 or e["step"] == 1]


def write(events, file):
    for event in events:
        print(json.dumps(event, separators=(",", ":"), ensure_ascii=False), file=file)


# ---- several runs


def options_of(events):
    return start_of(events).get("options", {})


def by_seed(runs):
    """Groups runs, (name, log) each, that differ in nothing but their seed and their paths. Returns
    a list of (common part of the names, logs)."""
    groups = {}
    for name, events in runs:
        start = start_of(events)
        options = {
            key: value
            for key, value in options_of(events).items()
            if key not in ("seed", "output", "resume", "config")
        }
        # Logs of earlier versions have no options, and nothing is known to be equal.
        key = json.dumps([start.get("model"), start.get("data"), options or name], sort_keys=True)
        groups.setdefault(key, []).append((name, events))
    return [
        (common_name([name for name, _ in group]), [events for _, events in group])
        for group in groups.values()
    ]


def common_name(names):
    """Returns what names have in common, such as "softmax" of softmax-1 and softmax-2."""
    if len(names) == 1:
        return names[0]
    words = os.path.commonprefix([re.split(r"([-_./ ])", name) for name in names])
    return re.sub(r"([-_./ ]seed)?[-_./ ]*$", "", "".join(words)) or names[0]


# ---- statistics


def mean(numbers):
    return math.fsum(numbers) / len(numbers) if numbers else None


def spread(numbers):
    """Returns the standard deviation; None for fewer than two numbers."""
    return statistics.stdev(numbers) if len(numbers) > 1 else None


def perplexity(loss):
    return None if loss is None else math.exp(loss) if loss < 700 else math.inf


def incomplete_beta(a, b, x):
    """Computes the regularised incomplete beta function by its continued fraction (Lentz's
    method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = (
        math.exp(
            math.lgamma(a + b)
            - math.lgamma(a)
            - math.lgamma(b)
            + a * math.log(x)
            + b * math.log1p(-x)
        )
        / a
    )
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    total = d
    for i in range(1, 300):
        for term in (
            i * (b - i) * x / ((a + 2 * i - 1) * (a + 2 * i)),
            -(a + i) * (a + b + i) * x / ((a + 2 * i) * (a + 2 * i + 1)),
        ):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            total *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * total


def two_sided(t, freedom):
    """Returns the probability that Student's t is at least as far from 0."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def ratio(difference, error):
    """Returns Student's t; the error is 0 if all differences are equal."""
    return (
        difference / error
        if error > 0
        else math.copysign(math.inf, difference)
        if difference
        else 0
    )


def paired_test(differences):
    """Returns p of the hypothesis that the mean of paired differences is 0; None for fewer than
    two."""
    n = len(differences)
    if n < 2:
        return None
    t = ratio(mean(differences), spread(differences) / math.sqrt(n))
    return 0.0 if math.isinf(t) else two_sided(t, n - 1)


def welch_test(a, b):
    """Returns p of the hypothesis that two groups have equal means; their spreads may differ. None
    for fewer than two numbers in a group."""
    if min(len(a), len(b)) < 2:
        return None
    errors = [statistics.variance(x) / len(x) for x in (a, b)]
    t = ratio(mean(a) - mean(b), math.sqrt(sum(errors)))
    if math.isinf(t) or sum(errors) == 0:
        return 0.0 if t else 1.0
    freedom = sum(errors) ** 2 / sum(e * e / (len(x) - 1) for e, x in zip(errors, (a, b)))
    return two_sided(t, freedom)


# ---- numbers in tables


def decimals(x):
    x = abs(x)
    return 0 if x >= 1000 else 1 if x >= 100 else 2 if x >= 10 else 3 if x >= 1 else 4


def show(x):
    """Formats a number with about four digits; "-" for None."""
    return "-" if x is None else "inf" if math.isinf(x) else f"{x:.{decimals(x)}f}"


def both(numbers):
    """Returns "mean ± standard deviation" of the known numbers."""
    known = [x for x in numbers if x is not None]
    if len(known) < 2 or not all(map(math.isfinite, known)):
        return show(mean(known))
    return f"{show(mean(known))} ± {spread(known):.{decimals(mean(known))}f}"


def show_p(p):
    return "-" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def duration(seconds):
    """Returns "1h 02m", "3m 20s" or "12s"."""
    s = int(seconds + 0.5)
    if s < 60:
        return f"{s}s"
    return f"{s // 60}m {s % 60:02d}s" if s < 3600 else f"{s // 3600}h {s % 3600 // 60:02d}m"


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: scripts/logs.py RUN/log.jsonl [EVERY] >THIN.jsonl")
    try:
        every = int(sys.argv[2]) if len(sys.argv) == 3 else THIN_EVERY
        if every < 1:
            raise Error(f"{sys.argv[2]}: expected a number of steps above 0")
        write(thin(read(path_of(sys.argv[1])), every), sys.stdout)
    except (Error, ValueError) as error:
        sys.exit(f"logs.py: {error}")


if __name__ == "__main__":
    main()
