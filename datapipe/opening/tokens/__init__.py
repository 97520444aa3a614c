"""Files of token ids: those that `datapipe convert --to tokens` writes, and those of other libraries, read in place."""
