"""Local solvers, server optimisers and step size schedules."""
