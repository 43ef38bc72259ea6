"""`ogrpo logs FILE`: what a log of completions can teach, before anything is trained on it."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def main(options: Sequence[str]) -> int:
    """Counts rows and groups of FILE; with a model, says how far it is from who drew them."""
    parser = argparse.ArgumentParser(prog="ogrpo logs", description=main.__doc__)
    parser.add_argument("log", type=Path, metavar="FILE", help="rows, a folder of them, or a run")
    parser.add_argument("--group-size", type=int, default=8, help="completions of a group")
    parser.add_argument("--model.path", dest="model", type=Path, help="the model to be trained")
    parser.add_argument("--temperature", type=float, default=1.0, help="of its log-probs")
    parser.add_argument("--prompt-length", type=int, help="tokens of a prompt at most")
    parser.add_argument("--max-tokens", type=int, help="tokens of a completion at most")
    parser.add_argument("--system", help="an opening system turn, as --data.system")
    parser.add_argument("--together", type=int, default=4, help="groups that are scored at a time")
    arguments = parser.parse_args([*options])
    if min(arguments.group_size, arguments.together, arguments.temperature) <= 0:
        raise ValueError("--group-size, --together and --temperature are above 0")
    from ogrpo.system.terminal import shown

    for line in lines_of(arguments):
        print(shown(line))
    return 0


def lines_of(options: argparse.Namespace) -> list[str]:
    """Returns the lines to show."""
    from ogrpo.data.logs import LogTerms, read_log
    from ogrpo.data.tokenizer import TextTokenizer
    from ogrpo.policy.pretrained import load_config
    from ogrpo.setup.cache import weights_folder
    from ogrpo.setup.log_support import support
    from ogrpo.setup.logs import log_terms, model_score, rows_of

    bounds: dict[str, Any] = {
        "group_size": options.group_size,
        "prompt_length": options.prompt_length,
        "completion_length": options.max_tokens,
    }
    folder = options.model and weights_folder(options.model)
    if folder is None:
        terms = LogTerms(encode_prompt=_letters, encode=None, **bounds)
    else:
        tokenizer, vocab_size = TextTokenizer.load(folder), load_config(folder).vocab_size
        bounds |= {"temperature": options.temperature, "vocab_size": vocab_size}
        terms = log_terms(tokenizer, system=options.system, variables={}, **bounds)
    log = read_log(rows_of(options.log), terms)
    lines = [
        f"{options.log}: {log.rows:,} rows, {log.accepted:,} accepted",
        *(f"  {count:,} {label}" for label, count in log.counts() if count),
        *(
            f"  {count:,} by {policy or 'no named policy'}, version {version}"
            for (policy, version), count in log.policies.most_common()
        ),
        f"  {log.without_log_probs:,} without log-probs",
        f"{log.prompts:,} prompts, {len(log.experiences):,} groups of {options.group_size}",
    ]
    if not log.experiences:
        return lines
    rewards = np.array([one.rewards for one in log.experiences])
    most = np.nanmax(rewards, axis=1, initial=-np.inf)
    equal = most <= np.nanmin(rewards, axis=1, initial=np.inf)
    lines.append(
        f"rewards: mean {np.nanmean(rewards):.4g}, {np.nanmin(rewards):g} to {most.max():g};"
        f" {equal.mean():.1%} of the groups have equal ones, {(most > 0).mean():.1%} one above 0"
    )
    if folder is None:
        return lines
    score = model_score(folder, "float32", options.temperature)
    of = support(log.experiences, score, together=options.together)
    lines.append(
        f"under {options.model}: {of.finite:.1%} of the completions have a finite log-prob, of"
        f" {of.log_prob:.4g} nats a token"
    )
    if not len(of.ratios):
        return [*lines, "  no row in a group has log-probs: no ratio to who drew them"]
    low, middle, high = np.quantile(of.ratios, (0.05, 0.5, 0.95))
    return [
        *lines,
        f"  log pi/mu of {len(of.ratios):,} completions: {low:.3g}, {middle:.3g} and {high:.3g} at"
        f" 5, 50 and 95 %; mean of pi/mu {of.mass:.3g} (1 where the log covers the model)",
        f"  effective sample size: {of.ess_sequence:.1%} of the completions by their ratios,"
        f" {of.ess_token:.1%} of the tokens by theirs",
        "  no certified gain: it takes rewards in [0, 1], and log-probs of all rows, none left out"
        if np.isnan(of.gain) or log.refused or log.repeats
        else f"  mean reward of the model less that of who drew the log: {of.gain:+.4f} at least"
        " (95 %; for exact log-probs, and a model that was not trained on this log)",
    ]


def _letters(prompt: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(prompt, sort_keys=True).encode(), np.uint8).astype(np.int32)
