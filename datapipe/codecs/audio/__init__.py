"""Sound files to samples, at the rate and with the channels that are wanted."""
