"""`ladder`: how few completions do, with reuse and without, on both tasks."""
