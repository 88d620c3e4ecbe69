"""The sections of a report, a file each: a question, its answer, and what that rests on."""
