"""Tables and data frames of users."""
