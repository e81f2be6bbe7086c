#!/usr/bin/env python3
"""Turns the log.jsonl of runs into event files of TensorBoard. Needs the package tensorboard.

  scripts/export_tensorboard.py [-o DIR] RUN...     DIR: runs/tensorboard
  tensorboard --logdir runs/tensorboard

Each number of a step or an evaluation becomes a scalar: train/loss, val/bpb, test/ppl, ...
"""

import argparse
import math
import os
import shutil
import sys
import types

import logs

NOT_SHOWN = {"step", "seconds"}


def scalars(line):
    """Yields (name, value) of each measure in a line of a log."""
    for key, value in line.items():
        if key in NOT_SHOWN or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if not math.isfinite(value):
            continue
        split, _, name = key.partition("_")
        scalar = f"{split}/{name}" if split in ("val", "test") and name else f"train/{key}"
        yield scalar, float(value)


def export(run, directory, tensorboard):
    path = logs.path_of(run)
    lines = [
        line
        for line in logs.read(path)
        if isinstance(line.get("step"), int) and "event" not in line
    ]
    if not lines:
        raise logs.Error(f"{path}: no training step in it")
    begin = os.path.getmtime(path) - max(line.get("seconds", 0) for line in lines)
    shutil.rmtree(directory, ignore_errors=True)  # output of an earlier call
    writer = tensorboard.EventFileWriter(directory)
    count = 0
    for line in lines:
        values = [
            tensorboard.Summary.Value(tag=name, simple_value=value) for name, value in scalars(line)
        ]
        writer.add_event(
            tensorboard.Event(
                wall_time=begin + line.get("seconds", 0),
                step=line["step"],
                summary=tensorboard.Summary(value=values),
            )
        )
        count += len(values)
    writer.close()
    print(f"{directory}: {count} scalars of {len(lines)} lines")


def library():
    """Returns the classes of tensorboard that write."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise logs.Error("the package tensorboard is missing: pip install tensorboard") from error
    return types.SimpleNamespace(Event=Event, Summary=Summary, EventFileWriter=EventFileWriter)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", default="runs/tensorboard", metavar="DIR")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a directory that holds a log.jsonl")
    arguments = parser.parse_args()
    names = [os.path.basename(os.path.normpath(run)) for run in arguments.runs]
    try:
        tensorboard = library()
        for run, name in zip(arguments.runs, names):
            own = (
                name
                if names.count(name) == 1
                else os.path.normpath(run).strip("/").replace("/", "-")
            )
            export(run, os.path.join(arguments.output, own), tensorboard)
    except logs.Error as error:
        sys.exit(f"export_tensorboard.py: {error}")


if __name__ == "__main__":
    main()
