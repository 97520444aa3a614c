"""Read Arrow files of Hugging Face datasets."""
