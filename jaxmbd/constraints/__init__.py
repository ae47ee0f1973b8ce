"""Closed loops and other constraints: rows, saddle solve, assembly and projection."""
