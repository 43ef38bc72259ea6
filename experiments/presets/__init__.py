"""Final scores of each preset on the default task."""
