"""The page of `raysim report`: tables and charts of runs in one HTML file that loads nothing.

The same runs give the same bytes. Names and settings of runs are untrusted text, which Jinja2 and
the charts escape.
"""

from raysim.results.report.page import Panel, check_extras, panel_of, render, report, text_of

__all__ = ["Panel", "check_extras", "panel_of", "render", "report", "text_of"]
