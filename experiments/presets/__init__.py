"""README's table: what each preset reaches on the default task."""
