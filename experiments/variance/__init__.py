"""Error of off-policy estimators against staleness, measured and predicted."""
