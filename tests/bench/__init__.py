"""Times this project against what people would do without it, side by side: nox -s bench."""
