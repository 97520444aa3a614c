"""Read chunks of Lightning's `litdata`, which datapipe does not write."""
