"""Which tokens carry what words say: token choice × protocol on scenes, for several seeds of the alignment.

    python -m lab.benchmarks.words runs/stars --out words.json --seeds 0 1 2

Trains our own text tower and a probe for every choice and seed on captions of training scenes, and measures on test
scenes. Results are written after every run; one that is in the file is not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import asterism

TOKENS = ("sparse", "class", "mean-patch", "sparse+class", "patches")
TRAIN, TEST, PAIRS = "scenes:size=64,count=3000", "scenes:size=64,count=300", "scenes:size=64,count=180"
SETTINGS = ["text.dim=64", "text.depth=1", "trainer.batch_size=128", "optim.lr=2e-3", "trainer.devices=1"]
SHOWN = {
    "zero-shot": ("top1",),
    "text-retrieval": ("text_to_image_r1", "text_to_image_r5", "image_to_text_r1", "image_to_text_r5"),
    "winoground": ("text", "image", "group"),
    "mmvp": ("left-right", "above-below", "colour"),
    "composition": ("thing", "colour", "size", "place", "relation", "order"),
}


def measured(encoder: Path, tokens: str, seed: int, steps: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = [*SETTINGS, f"trainer.steps={steps}", f"trainer.seed={seed}", f"probe.tokens={tokens}"]
        run = asterism.align(encoder, TRAIN, out=out, overrides=settings)
        model = asterism.load(run)
        found = asterism.evaluate(
            model, TEST, ["zero-shot", "text-retrieval", "composition"], overrides=['zero-shot.templates=["a {}"]']
        )
        found |= asterism.evaluate(model, PAIRS, ["winoground", "mmvp"], overrides=["mmvp.template='{}'"])
        return {name: dict(result.values) for name, result in found.items()}


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    lines = ["| protocol | value | " + " | ".join(TOKENS) + " |", "|---|---" + "|---:" * len(TOKENS) + "|"]
    for protocol, names in SHOWN.items():
        for name in names:
            cells = []
            for tokens in TOKENS:
                own = [values[protocol][name] for key, values in results.items() if key.split("/")[1] == tokens]
                spread = f" ± {statistics.stdev(own):.1f}" if len(own) > 1 else ""
                cells.append(f"{statistics.fmean(own):.1f}{spread}" if own else "")
            lines.append(f"| {protocol} | {name} | {' | '.join(cells)} |")
    blind = next(iter(results.values()))["composition"]
    lines.append(f"\nWords alone: { {k: round(v, 1) for k, v in blind.items() if k.startswith('blind')} }")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("words.json"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tokens", nargs="+", default=list(TOKENS))
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    for encoder in given.encoders:
        for seed in given.seeds:
            for tokens in given.tokens:
                key = f"{encoder.name}/{tokens}/{seed}"
                if key not in results:
                    before = time.process_time()
                    results[key] = measured(encoder, tokens, seed, given.steps)
                    given.out.write_text(json.dumps(results, indent=1))
                    print(key, f"{time.process_time() - before:.0f} s of CPU", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
