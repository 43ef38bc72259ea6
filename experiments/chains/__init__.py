"""`chains`: objective, prompt mix and reuse on a task that sharpening does not win."""
