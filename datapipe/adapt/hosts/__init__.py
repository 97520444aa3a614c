"""Support for frameworks that treat torch's loaders specially, which they would not do for ours, or would do wrongly.

docs/hosts.md has the lines to type; each framework is imported by its own module only.
"""
