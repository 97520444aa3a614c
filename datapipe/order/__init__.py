"""Which sample comes when, and with which random draws: arithmetic on positions and seeds."""
