"""Tables of comparisons in Markdown: means and spreads of arms, how sure their differences are, and
which machines made the runs. c is a Comparison (compare.py), which has its rows: a run each."""

import collections

import logs
from logs import both, show_p


def table(heads, lines):
    """Returns a list of lines as a Markdown table."""
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
        *("| " + " | ".join(map(str, line)) + " |" for line in lines),
    ]


def rows_of(c, arm, value=None, data=None):
    return [
        row
        for row in c.rows
        if row["arm"] == arm and row["value"] == value and data in (None, row["data"])
    ]


def column(key, of=lambda x: x):
    """Returns a column: mean and spread over the runs of of(number)."""
    return lambda rows: both([None if row.get(key) is None else of(row[key]) for row in rows])


def largest(key, form="{:.3g}"):
    return lambda rows: max_text([r[key] for r in rows if r.get(key) is not None], form)


def max_text(numbers, form):
    return form.format(max(numbers)) if numbers else "-"


def mark(rows):
    """Returns a mark if one of the runs diverged."""
    return " x" if any(row.get("diverged") for row in rows) else ""


def arms_table(c, columns, head="model", data=None, arms=None):
    """Returns a table with a line for each arm that has runs; columns: (heading, function of the
    arm's rows that returns a cell)."""
    arms = [arm for arm in arms or c.arms if rows_of(c, arm, data=data)]
    return table(
        [head, *(name for name, _ in columns)],
        [[arm, *(cell(rows_of(c, arm, data=data)) for _, cell in columns)] for arm in arms],
    )


def grid(c, columns):
    """Returns a table with a line for each arm, and these columns for each value; {} in a heading
    is replaced by the value."""
    heads = [name.format(value) for value in c.values for name, _ in columns]
    return table(
        ["", *heads],
        [
            [arm, *(cell(rows_of(c, arm, value)) for value in c.values for _, cell in columns)]
            for arm in c.arms
        ],
    )


# ---- significance of differences


def difference(c, arm, base, key, value=None, data=None, paired=True):
    """Returns (differences, p): seed by seed with a paired t test, else the difference of the means
    with Welch's test."""
    a, b = (
        {row["seed"]: row[key] for row in rows_of(c, name, value, data) if row.get(key) is not None}
        for name in (arm, base)
    )
    seeds = [seed for seed in a if seed in b]
    if paired and seeds:
        each = [a[seed] - b[seed] for seed in seeds]
        return each, logs.paired_test(each)
    if a and b:
        return (
            [logs.mean([*a.values()]) - logs.mean([*b.values()])],
            logs.welch_test([*a.values()], [*b.values()]),
        )
    return [], None


def signed(numbers, digits=4):
    """Returns "+0.0077 ± 0.0156"."""
    if not numbers:
        return "-"
    sd = logs.spread(numbers)
    return f"{logs.mean(numbers):+.{digits}f}" + ("" if sd is None else f" ± {sd:.{digits}f}")


def differences(c, key, name, base_of, paired=True, arms=None):
    """Returns a paragraph and a table: the difference of each arm from its baseline, and p."""
    lines = []
    for arm in arms or c.arms:
        base = base_of(arm)
        found = [difference(c, arm, base, key, value, paired=paired) for value in c.values]
        if base != arm and any(p is not None for _, p in found):
            lines.append(
                [f"{arm} - {base}", *(x for each, p in found for x in (signed(each), show_p(p)))]
            )
    if not lines:
        return []
    values = ["" if value is None else f", {value}" for value in c.values]
    how = (
        "seed by seed, mean ± standard deviation; p of a paired t test (two-sided)"
        if paired
        else "of the means; p of Welch's t test (two-sided)"
    )
    return [
        "",
        f"Differences of the {name}, {how}, not corrected for the number of comparisons:",
        "",
        *table(["", *(x for value in values for x in (f"difference{value}", "p"))], lines),
    ]


# ---- machines


def machines(rows):
    """Returns "5 runs on NVIDIA H200, ..., bf16; 1 run on ..."."""
    counted = collections.Counter(row.get("machine") or "an unknown machine" for row in rows)
    most_first = sorted(counted.items(), key=lambda x: (x[1], x[0]), reverse=True)
    return "; ".join(f"{n} {'run' if n == 1 else 'runs'} on {name}" for name, n in most_first)


def machine_list(c):
    """Lists the runs of each machine if several made them: they may compute in different
    precisions."""
    found = {}
    for row in c.rows:
        name = "-".join(x for x in (row["arm"], row["value"]) if x)
        made = found.setdefault(row.get("machine") or "an unknown machine", {})
        made.setdefault(name, []).append(row["seed"])
    if len(found) < 2:
        return []
    return [
        "",
        "Machines, with the seeds that each made:",
        "",
        *(
            f"- {machine}: "
            + ", ".join(
                f"{name} ({' '.join(map(str, seeds))})" for name, seeds in sorted(made.items())
            )
            for machine, made in sorted(found.items())
        ),
    ]


def main_processor(c):
    """Returns the processor of most runs. Times and speeds on others are not comparable with its
    own."""
    counted = collections.Counter(row.get("processor") for row in c.rows if row.get("processor"))
    return counted.most_common(1)[0][0] if counted else None


def timed(c, key, of=lambda x: x):
    """Returns a column of a time or a speed, of the runs on the main processor."""
    processor = main_processor(c)
    return lambda rows: both(
        [
            of(row[key])
            for row in rows
            if row.get(key) is not None and row.get("processor") == processor
        ]
    )
