"""What shards and files of tables hold, a package or module for each format, and the forms of all data, named in `forms`."""
