"""One grid runner, on which every study stands (docs/studies.md)."""
