"""A reward for each line of a solution beside that of its outcome."""
