"""Sound: random crops of a few seconds, or whole utterances in batches of like length."""
