"""What every other room may use: errors, checks of arguments, files written atomically, observers."""
