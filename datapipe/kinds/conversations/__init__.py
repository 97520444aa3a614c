"""Batches of conversations with images: packed into rows of tokens, their images as a vision-language model takes them."""
