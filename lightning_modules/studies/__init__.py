"""Studies: grids of training runs, their statistics, and a report."""
