"""Display: units, terminal lines, charts and Jupyter."""
