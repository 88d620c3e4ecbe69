"""Find out what keeps a deployment from working, and say it in plain words."""
