"""Motions and systems to look at: figures and tables. matplotlib is imported when a figure is drawn, not before."""

from jaxmbd.view.names import column_names
from jaxmbd.view.plots import draw_run
from jaxmbd.view.tables import describe

__all__ = ["column_names", "describe", "draw_run"]
