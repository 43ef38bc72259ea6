"""Held-out answers: sampling, records, Pass@k and maj@k with their intervals."""

from ogrpo.evaluation.answers import AnswerFile, AnswerRecord
from ogrpo.evaluation.estimates import (
    Z95,
    Estimate,
    clustered_interval,
    majority_at_k,
    mean_interval,
    pass_at_k,
)
from ogrpo.evaluation.evaluate import JudgeFn, sample_and_judge
from ogrpo.evaluation.metrics import answer_readers, success_reward, summary
