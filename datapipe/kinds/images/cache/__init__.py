"""Keep values that were costly to make, from epoch to epoch, shared by the processes of a node."""
