"""Stage report: draws the figures and writes the HTML page."""
