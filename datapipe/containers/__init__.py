"""Read what shards and files of tables hold: a package or module for each format. `forms` names the forms of all data."""
