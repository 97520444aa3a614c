"""Forms that list their samples: folders, lists of files, archives, databases, documents. Each has `open_source`."""
