"""Answers to make files and summaries of."""

from math import nan

from ogrpo.evaluation import AnswerRecord


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


FAILED = nan
