"""From a validated configuration to a finished run directory."""
