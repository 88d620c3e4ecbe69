"""Local solvers, server optimizers, and schedules of step sizes."""
