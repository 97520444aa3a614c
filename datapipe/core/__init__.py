"""Shared by every other room: errors, argument checks, atomic files, observers."""
