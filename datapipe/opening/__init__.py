"""A path to the index of what lies there: samples, documents of token ids, videos, recordings."""
