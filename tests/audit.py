"""Known vulnerabilities of the pinned dependencies: `make audit`, and `make check` where pip-audit is installed.

    python -m tests.audit

A vulnerability fails the check unless it is an exception, with its reason, below and in docs/security.md. A check must
not depend on the network: what the vulnerability service does not answer for is reported as not audited.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PINNED = Path(__file__).parents[1] / "constraints.txt"
EXCEPTIONS: dict[str, str] = {}  # the reason, by the vulnerability's identifier
_SECONDS = 60


def main() -> int:
    if importlib.util.find_spec("pip_audit") is None:
        print("Not audited: pip-audit is not installed (`make audit` installs it)")
        return 0
    words = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "5"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(PINNED), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        found = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        print("Not audited: the vulnerability service cannot be reached")
        return 0
    text, bad = report(found)
    print(text)
    return int(bad)


def report(found: list[dict[str, Any]]) -> tuple[str, bool]:
    """What to print about the answers for each package, and whether something must be done."""
    known = [
        (package["name"], package["version"], flaw)
        for package in found
        for flaw in package.get("vulns", ())
        if not {flaw["id"], *flaw.get("aliases", ())} & set(EXCEPTIONS)
    ]
    lines = [
        f"{name} {version}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version'}"
        for name, version, flaw in known
    ]
    unknown = sum("skip_reason" in package for package in found)
    if unknown:
        lines.append(f"Not audited: the vulnerability service does not answer for {unknown} of {len(found)} packages")
    if not lines:
        lines.append(f"No known vulnerabilities in {len(found)} packages")
    return "\n".join(lines), bool(known)


if __name__ == "__main__":
    sys.exit(main())
