"""Reading of users' tables and data frames."""
