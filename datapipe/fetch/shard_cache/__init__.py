"""Keep whole shards of object stores on a local disk, shared by the processes of a node."""
