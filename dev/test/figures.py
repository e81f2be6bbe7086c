#!/usr/bin/env python3
"""Whether each "mean ± deviation" of README.md and docs is one in a table of dev/results, rounded.

Prints those that are not. The last line is "N passed, N failed"."""
import glob
import re
import sys

PAIR = re.compile(r"[-+]?(\d[\d,]*(?:\.\d+)?) ± (\d+(?:\.\d+)?)")


def pairs(text):
    """Returns [(mean, deviation)] as strings, without signs and commas."""
    return [(mean.replace(",", ""), deviation) for mean, deviation in PAIR.findall(text)]


def is_rounded(shown, exact):
    """Returns whether `shown` is `exact` rounded to the decimals of `shown`."""
    decimals = len(shown.partition(".")[2])
    return abs(float(shown) - float(exact)) <= 0.5000001 * 10**-decimals


def main():
    found = set()
    for path in glob.glob("dev/results/*/*.md"):
        with open(path, encoding="utf-8") as file:
            found.update(pairs(file.read()))
    passed = failed = 0
    for path in ["README.md", *sorted(glob.glob("docs/*.md"))]:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                for pair in pairs(line):
                    if any(all(map(is_rounded, pair, exact)) for exact in found):
                        passed += 1
                    else:
                        failed += 1
                        print(f"FAIL {path}:{number}: {' ± '.join(pair)} is in no table")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
