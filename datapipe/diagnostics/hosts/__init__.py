"""Monitors for frameworks that have the training loop: PyTorch Lightning's, and Hugging Face Transformers'."""
