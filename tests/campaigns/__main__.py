"""`python -m tests.campaigns [CAMPAIGN...]`: every case of the campaigns, and a table of how they ended."""

import argparse
import importlib
import sys
import time
from collections.abc import Iterable

from tests.campaigns import CAMPAIGNS
from tests.campaigns.campaign import Case, few, run_case, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"of {', '.join(CAMPAIGNS)}; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of generated cases")
    parser.add_argument("--per-cause", type=int, metavar="N", help="only N cases of every cause")
    parser.add_argument("--match", default="", metavar="TEXT", help="only cases with this text in cause or name")
    parser.add_argument("--verbose", "-v", action="store_true", help="show how good cases ended, too")
    chosen = parser.parse_args()
    unknown = set(chosen.campaigns) - set(CAMPAIGNS)
    if unknown:
        parser.error(f"unknown campaign {', '.join(unknown)}; choose from {', '.join(CAMPAIGNS)}")
    verdicts, start = [], time.monotonic()
    for case in _cases(chosen):
        verdict = run_case(case)
        verdicts.append(verdict)
        if chosen.verbose or not verdict.passed:
            print(f"{verdict.kind}: {case.cause}: {case.name}\n    {verdict.detail}", flush=True)
    seconds, computed = time.monotonic() - start, sum(verdict.computed for verdict in verdicts)
    print(f"\n{table(verdicts)}\n\n{len(verdicts)} cases in {seconds:.0f} s, of which {computed:.0f} s computing")
    return int(not all(verdict.passed for verdict in verdicts))


def _cases(chosen: argparse.Namespace) -> list[Case]:
    found: list[Case] = []
    for name in chosen.campaigns or CAMPAIGNS:
        cases: Iterable[Case] = importlib.import_module(f"tests.campaigns.{name}").cases(chosen.seed)
        found += cases if chosen.per_cause is None else few(cases, chosen.seed, chosen.per_cause)
    return [case for case in found if chosen.match in f"{case.cause}: {case.name}"]


if __name__ == "__main__":
    sys.exit(main())
