"""Frameworks that do something for torch's loaders which they would leave out, or undo, for ours. docs/hosts.md has the lines
to type; each framework is imported by its own module only."""
