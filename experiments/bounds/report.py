"""One self-contained HTML page about a `bounds` run: what held, and each plot in plain words."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bounds.claims import Claim, of_part
from experiments.bounds.plots import save_plots
from ogrpo.files import write_text
from ogrpo.report.page import render
from ogrpo.report.run_dir import RunDir

Record = dict[str, Any]


def _cards(records: Sequence[Record], claims: Sequence[Claim]) -> list[dict[str, str]]:
    exact = [claim for claim in claims if claim.kind == "exact"]
    periods = of_part(records, "period")
    certified = sum(r["certificate"] > 0 for r in periods)
    before, after = periods[0]["value/before"], periods[-1]["value/after"]
    return [
        {
            "value": f"{sum(c.holds for c in exact)} of {len(exact)}",
            "label": "exact claims held every time",
        },
        {"value": f"{before:.3f} → {after:.3f}", "label": "J of the default run, held-out prompts"},
        {"value": f"{certified} of {len(periods)}", "label": "server periods certified"},
    ]


def write_report(
    run: RunDir,
    config: dict[str, Any],
    command: str,
    records: Sequence[Record],
    claims: Sequence[Claim],
) -> None:
    """Draws the plots and writes the page."""
    plots = [
        {"name": path.stem, "data": base64.b64encode(path.read_bytes()).decode(), "caption": words}
        for path, words in save_plots(records, run.plots)
    ]
    page = render(
        Path(__file__).with_name("bounds.html.j2"),
        title=f"ogrpo bounds, seed {config['seed']}",
        cards=_cards(records, claims),
        claims=claims,
        plots=plots,
        command=command,
        config=json.dumps(config, indent=2),
    )
    write_text(run.report, page)
