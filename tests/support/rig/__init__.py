"""Drives the core: commands in, frames out; random programs, damage, crashes."""
