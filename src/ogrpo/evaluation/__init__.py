"""What held-out answers say, and how sure it is: sampling, records, Pass@k, maj@k, intervals.

`ogrpo.evaluation.table` is imported by itself, as it brings in rich.
"""

from ogrpo.evaluation.answers import AnswerFile, AnswerRecord
from ogrpo.evaluation.estimates import majority_at_k, pass_at_k
from ogrpo.evaluation.evaluate import sample_and_judge
from ogrpo.evaluation.intervals import (
    Z95,
    Estimate,
    clustered_interval,
    mean_interval,
    wilson_interval,
)
from ogrpo.evaluation.judging import JudgeFn
from ogrpo.evaluation.metrics import answer_readers, summary
from ogrpo.evaluation.reading import read_answers
from ogrpo.evaluation.rescoring import Rescored, rescore
from ogrpo.evaluation.success import estimate, is_zero_or_one, success_reward
