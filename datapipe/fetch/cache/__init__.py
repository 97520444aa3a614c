"""Values that were costly to make, kept from epoch to epoch and shared by the processes of a node."""
