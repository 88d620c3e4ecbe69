"""The sections of a report, one file each: a question, its answer, and the evidence."""
