"""Fails unless a run of the default learned what it should."""

import json
import sys
from pathlib import Path

records = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
evaluated = [r for r in records if r["pass@1/sampled"] is not None]
before, after = evaluated[0], evaluated[-1]
promises = {
    "the base samples right between .30 and .45 of the time": 0.30
    <= before["pass@1/sampled"]
    <= 0.45,
    "training reaches a sampled Pass@1 of at least .60": after["pass@1/sampled"] >= 0.60,
    "greedy improves beyond its interval": after["pass@1/greedy"] > before["pass@1/greedy/high"],
}
for promise, kept in promises.items():
    print("kept  " if kept else "BROKEN", promise)
sys.exit(not all(promises.values()))
