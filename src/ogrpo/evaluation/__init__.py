"""Held-out answers: sampling, records, Pass@k and maj@k with their intervals.

`ogrpo.evaluation.table` is imported by itself, as it brings in rich.
"""

from ogrpo.evaluation.answers import AnswerFile, AnswerRecord
from ogrpo.evaluation.estimates import majority_at_k, pass_at_k
from ogrpo.evaluation.evaluate import JudgeFn, sample_and_judge
from ogrpo.evaluation.intervals import (
    Z95,
    Estimate,
    clustered_interval,
    mean_interval,
)
from ogrpo.evaluation.metrics import (
    answer_readers,
    estimate,
    success_reward,
    summary,
)
