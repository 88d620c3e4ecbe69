"""The papers' tables and figures: specifications as data, cells that run in parallel and are never run twice."""
