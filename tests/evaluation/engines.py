"""An embedded engine whose sampler is a few lines of numpy, a judge of what it draws, answers."""

from types import SimpleNamespace

import numpy as np

from ogrpo.evaluation import AnswerRecord
from ogrpo.rewards.scores import Scores
from ogrpo.rollout.embedded import EmbeddedEngine

EOS = 9


def sample(params, ids, mask, seed, *, temperature, greedy, group_size, max_tokens):
    """Digits 0 to 8, drawn anew for each call by its seed, until EOS or `max_tokens`."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, EOS + 1, (len(ids), group_size, max_tokens)).astype(np.int32)
    ended = np.cumsum(tokens == EOS, axis=-1)
    live = (ended == 0) | ((ended == 1) & (tokens == EOS))
    log_probs = np.where(live, -np.log(10), 0).astype(np.float32)
    return SimpleNamespace(
        token_ids=tokens, log_probs=log_probs, mask=live, finished=ended[..., -1] > 0
    )


def make_engine(batch_size=2):
    engine = EmbeddedEngine(sample, batch_size=batch_size, prompt_length=8)
    engine.publish(None, 0)
    return engine


def encode(example):
    return np.array([len(str(example.prompt)) % 7 + 1], np.int32)


def decode(ids):
    return "".join(str(i) for i in ids if i != EOS)


def holds(request):
    """Right if the text holds the column `answer`; fails on texts that begin with 0."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in request.completions]
    answers = request.columns["answer"]
    right = np.array([a in t for a, t in zip(answers, texts, strict=True)], np.float32)
    failed = np.array([t.startswith("0") for t in texts])
    values = {"holds": np.where(failed, np.nan, right).astype(np.float32)}
    return Scores(np.where(failed, 0, right).astype(np.float32), values, failed, ())


def record(problem=0, sample=0, *, text="so 4", correct=1.0, **changes):
    return AnswerRecord(
        **{
            "problem": problem,
            "sample": sample,
            "source": f"held.jsonl:{problem + 1}",
            "prompt": "2 + 2?",
            "columns": {"answer": "4"},
            "text": text,
            "token_ids": tuple(range(len(text))),
            "finish_reason": "stop",
            "values": {"correct": correct},
            "reward": correct,
            "failed": correct != correct,
            **changes,
        }
    )


def outcomes_of(*prompts):
    return np.array(prompts, np.float32)
