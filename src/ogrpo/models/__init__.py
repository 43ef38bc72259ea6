"""Weights from elsewhere as Hugging Face folders: known names, GGUF files, a model hub."""
