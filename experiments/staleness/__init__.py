"""Workers, slow and uneven engines: pace, staleness and Pass@1, beside what `plan` predicts."""
