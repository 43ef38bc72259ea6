"""The model card: README.md beside a run's weights, as the Hugging Face hub shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from ogrpo.report.scores import Record, evaluations, interval, scores
from ogrpo.system.files import write_text

CARD = "README.md"


@dataclass(frozen=True)
class CardData:
    """The facts of a card, beside the run's records."""

    name: str
    method: str
    source: str
    """The paper of the method, or where it is defined."""
    data: str
    command: str
    base: str | None
    """The weights that training began with; None: they were made in the run."""
    licence: str | None
    """Of those weights, where it is known."""
    provenance: Sequence[tuple[str, str]]


def write_card(folder: Path, data: CardData, records: Sequence[Record]) -> None:
    """Writes the card of a trained model.

    Its front matter names a licence only where that of the weights beneath is known.

    Raises:
      OSError: the folder cannot be written.
    """
    head = {"library_name": "transformers", "tags": ["ogrpo", "grpo", "reinforcement-learning"]}
    if data.base is not None and data.licence is not None:
        head["license"] = data.licence.lower()
    evaluated = evaluations(records)
    kinds = scores(evaluated)
    rows = [
        f"| {each['step']} | {each['completions']:,} | "
        + " | ".join(interval(each, score.key) for score in kinds)
        + " |"
        for each in evaluated
    ]
    table = [
        f"| step | completions | {' | '.join(score.label for score in kinds)} |",
        f"|{'---|' * (len(kinds) + 2)}",
        *rows,
    ]
    if data.base is None:
        licence = "The weights were made in the run, from no other model."
    elif data.licence is None:
        licence = f"The licence of {data.base} is not known here: look it up before you publish."
    else:
        licence = f"That of {data.base}: {data.licence}."
    lines = [
        *("---", yaml.safe_dump(head, sort_keys=False).rstrip(), "---", "", f"# {data.name}", ""),
        f"Trained with ogrpo by {data.method} ({data.source}), on {data.data}.",
        *("", "## Held-out scores", "", "With 95 % intervals.", "", *table),
        *("", "## How it was made", "", "```sh", data.command, "```", ""),
        *("| | |", "|---|---|", *(f"| {name} | `{value}` |" for name, value in data.provenance)),
        *("", "## Licence", "", licence, ""),
    ]
    write_text(folder / CARD, "\n".join(lines))
